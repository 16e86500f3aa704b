"""What is compared on a GPU. See `..contenders`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.runtime.backends.onnxruntime.cuda import PRECISIONS

from ..contenders import (
    CTRANSLATE2,
    REFERENCE,
    Contender,
    Generate,
    as_it_is,
    generator,
    load_ctranslate2,
    optimized,
    prepare_bundle,
    prepare_ctranslate2,
)

if TYPE_CHECKING:
    from dragoman.runtime.format.executables import Range

ENGINES = (
    ("Dragoman RTX fp16", "tensorrt-rtx", "fp16"),
    ("Dragoman RTX int8", "tensorrt-rtx", "int8"),
    ("Dragoman RTX int4", "tensorrt-rtx", "int4"),
    ("Dragoman TensorRT fp16", "tensorrt", "fp16"),
)
GRAPHS = tuple((f"Dragoman CUDA {precision}", precision) for precision in PRECISIONS)
LARGEST_BATCH = 128
LONGEST_SOURCE = 64
CAPACITY = 64


def gpu_contenders() -> list[Contender]:
    """The reference first; those whose libraries are missing too, for that is to be reported."""
    return [
        Contender(REFERENCE, as_it_is, partial(load_torch, dtype="float32"), needs_torch=True),
        *(
            Contender(
                name,
                partial(prepare_engines, target=target, precision=precision),
                partial(load_on, backend=target),
            )
            for name, target, precision in ENGINES
        ),
        *(
            Contender(
                name,
                partial(prepare_bundle, target="neutral", precision=precision),
                partial(load_on, backend="onnxruntime-cuda"),
            )
            for name, precision in GRAPHS
        ),
        Contender("PyTorch fp16", as_it_is, partial(load_torch, dtype="float16"), needs_torch=True),
        Contender(
            "PyTorch fp16, CUDA graphs",
            as_it_is,
            partial(load_torch, dtype="float16", graphs=True),
            needs_torch=True,
        ),
        Contender(
            f"{CTRANSLATE2} float16",
            partial(prepare_ctranslate2, compute_type="float16"),
            partial(load_ctranslate2, compute_type="float16", device="cuda"),
        ),
    ]


def prepare_engines(source: Path, directory: Path, *, target: str, precision: str) -> Path:
    from dragoman.runtime.format.executables import Range

    neutral = prepare_bundle(source, directory, target="neutral", precision="fp32")
    lengths = Range(1, 32, LONGEST_SOURCE)
    return with_engines(neutral, directory, target, precision, LARGEST_BATCH, lengths, CAPACITY)


def with_engines(
    neutral: Path,
    directory: Path,
    target: str,
    precision: str,
    largest_batch: int,
    source: Range,
    capacity: int,
) -> Path:
    """Engines of a neutral bundle, in a new directory: with a profile for one sentence and one for
    up to `largest_batch`."""
    from dragoman.optimize.tensorrt.builder import EngineOptions
    from dragoman.optimize.tensorrt.engine_bundle import build_engines
    from dragoman.optimize.tensorrt.profiles import LATENCY
    from dragoman.runtime import read_bundle
    from dragoman.runtime.format.executables import Profile, Range

    graphs = optimized(
        neutral, directory.with_name(f"{directory.name}-graphs"), target=target, precision=precision
    )
    profiles = tuple(Profile(b, source) for b in (LATENCY, Range(1, 32, largest_batch)))
    directory.mkdir()
    build_engines(read_bundle(graphs), directory, EngineOptions(profiles, capacity))
    return directory


def load_on(directory: Path, threads: int, *, backend: str) -> Generate:
    from dragoman.runtime import load

    return generator(load(directory, threads=threads, backend=backend))


def backend_of(contender: Contender) -> str | None:
    """The backend of ours that it loads, if it is one."""
    load = contender.load
    return load.keywords["backend"] if isinstance(load, partial) and load.func is load_on else None


def load_torch(directory: Path, threads: int, *, dtype: str, graphs: bool = False) -> Generate:
    from ..peers import torch_cuda

    return torch_cuda.load(directory, threads, dtype=dtype, graphs=graphs)
