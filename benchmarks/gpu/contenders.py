"""The contenders on a GPU: the reference, Dragoman's backends, PyTorch and CTranslate2."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dragoman.runtime.backends.table import BACKENDS

from ..harness import Contender, unchanged
from ..models.bundles import bundle_of_checkpoint, bundle_with_engines
from ..peers.interface import Batch, Generate, Rows
from ..text.contenders import REFERENCE, TextContender, ctranslate2_contender, load_bundle

ENGINES = (
    ("Dragoman RTX fp16", "tensorrt-rtx", "fp16"),
    ("Dragoman RTX int8", "tensorrt-rtx", "int8"),
    ("Dragoman RTX int4", "tensorrt-rtx", "int4"),
    ("Dragoman TensorRT fp16", "tensorrt", "fp16"),
)
"""Contender, backend (which is the target too) and precision."""

PROVIDER_PRECISIONS = next(b.precisions for b in BACKENDS if b.name == "onnxruntime-cuda") or ()
"""What ONNX Runtime's CUDA provider runs."""

LARGEST_BATCH = 128
LONGEST_SOURCE = 64
CAPACITY = 64
"""What engines are built for; the capacity in new tokens."""


@dataclass(frozen=True)
class BackendContender(Contender[Batch, Rows]):
    """Dragoman on one of its backends.

    Attributes:
        backend: its name, as `runtime.load` expects it
    """

    backend: str = ""


def gpu_contenders() -> list[TextContender]:
    """The reference first. Tools that are not installed are included: their failure is reported."""
    return [
        Contender(
            REFERENCE,
            unchanged,
            partial(load_torch, dtype="float32"),
            needs_torch=True,
            required=True,
        ),
        *(
            BackendContender(
                name,
                partial(prepare_engines, target=backend, precision=precision),
                partial(load_bundle, backend=backend),
                backend=backend,
            )
            for name, backend, precision in ENGINES
        ),
        *(
            BackendContender(
                f"Dragoman CUDA {precision}",
                partial(bundle_of_checkpoint, target="neutral", precision=precision),
                partial(load_bundle, backend="onnxruntime-cuda"),
                backend="onnxruntime-cuda",
            )
            for precision in PROVIDER_PRECISIONS
        ),
        Contender(
            "PyTorch fp16", unchanged, partial(load_torch, dtype="float16"), needs_torch=True
        ),
        Contender(
            "PyTorch fp16, CUDA graphs",
            unchanged,
            partial(load_torch, dtype="float16", graphs=True),
            needs_torch=True,
        ),
        ctranslate2_contender("float16", device="cuda"),
    ]


def prepare_engines(checkpoint: Path, directory: Path, *, target: str, precision: str) -> Path:
    """Export a checkpoint and build engines; see `bundle_with_engines`."""
    from dragoman.runtime.format.executables import Range

    neutral = bundle_of_checkpoint(checkpoint, directory, target="neutral", precision="fp32")
    return bundle_with_engines(
        neutral,
        directory,
        target=target,
        precision=precision,
        largest_batch=LARGEST_BATCH,
        source=Range(1, 32, LONGEST_SOURCE),
        capacity=CAPACITY,
    )


def load_torch(directory: Path, threads: int, *, dtype: str, graphs: bool = False) -> Generate:
    """`peers.torch_cuda.load`, which imports torch, imported where it is called."""
    from ..peers import torch_cuda

    return torch_cuda.load(directory, threads, dtype=dtype, graphs=graphs)
