"""The contenders on a GPU: Dragoman's backends, PyTorch, transformers and CTranslate2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.errors import DragomanError
from dragoman.runtime.backends.table import BACKENDS
from dragoman.runtime.format.manifest import Range

from ...models.bundles import bundle_of_checkpoint, bundle_with_engines
from ...peers import ctranslate2_runtime
from ...peers.interface import Generate, import_library
from ..rounds import Contender, unchanged
from . import text

PROVIDER_PRECISIONS = next(b.precisions for b in BACKENDS if b.name == "onnxruntime-cuda") or ()
"""The precisions that ONNX Runtime's CUDA provider runs."""

TORCH_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class EngineSizes(NamedTuple):
    """The sizes of engines."""

    batches: tuple[Range, ...]
    source: Range
    capacity: int


def engine_sizes(workload: text.Workload) -> EngineSizes:
    """Select engine sizes for all batches of a workload.

    One profile is for a single source and one for the larger batches. The largest batch is a power
    of two, the largest length a multiple of 16.
    """
    larger = sorted(size for size in workload.batch_sizes if size > 1)
    batches = [Range(1, 1, 1)] if 1 in workload.batch_sizes else []
    if larger:
        batches.append(Range(1, larger[len(larger) // 2], 1 << (larger[-1] - 1).bit_length()))
    shortest = workload.source_length
    longest = workload.longest_source or shortest
    sources = Range(1, (shortest + longest + 1) // 2, -longest % 16 + longest)
    return EngineSizes(tuple(batches), sources, workload.new_tokens)


def gpu_contenders(sizes: EngineSizes) -> list[text.TextContender]:
    """List the contenders, the reference first, with engines of these sizes."""
    half, engines = ("fp16", "bf16"), partial(prepare_engines, sizes=sizes)
    kinds: tuple[tuple[str, str, Sequence[str], Callable[..., Path], str], ...] = (
        ("RTX", "tensorrt-rtx", (*half, "int8", "int4"), engines, "tensorrt-rtx"),
        ("TensorRT", "tensorrt", half, engines, "tensorrt"),
        ("CUDA", "onnxruntime-cuda", PROVIDER_PRECISIONS, bundle_of_checkpoint, "neutral"),
    )
    return [
        text.reference(partial(load_torch, tool="PyTorch", mode="fp32")),
        *(
            Contender(
                f"Dragoman {name} {precision}",
                partial(prepare, target=target, precision=precision),
                partial(text.load_bundle, backend=backend),
                precision=precision,
            )
            for name, backend, precisions, prepare, target in kinds
            for precision in precisions
        ),
        *(
            contender
            for tool in ("PyTorch", "transformers", "transformers compiled")
            for contender in text.peers(
                tool, half, unchanged, partial(load_torch, tool=tool), needs_torch=True
            )
        ),
        *text.ctranslate2_translators(
            partial(ctranslate2_runtime.load, device="cuda"), ("float16", "bfloat16")
        ),
    ]


def prepare_engines(
    checkpoint: Path, directory: Path, *, target: str, precision: str, sizes: EngineSizes
) -> Path:
    """Export a checkpoint and build engines; see `bundle_with_engines`."""
    neutral = bundle_of_checkpoint(checkpoint, directory, target="neutral", precision="fp32")
    kind: dict[str, Any] = {"target": target, "precision": precision, **sizes._asdict()}
    return bundle_with_engines(neutral, directory, **kind)


def load_torch(directory: Path, threads: int, *, tool: str, mode: str) -> Generate:
    """Load a checkpoint in PyTorch on the GPU, with its end token disabled.

    float32, which serves as the reference, runs on the CPU if PyTorch finds no GPU. The tool is
    "PyTorch", for the reference model; "transformers"; or "transformers compiled", which decodes
    with a static cache, for which transformers compiles the step.
    """
    import torch

    from ...peers.hugging_face import generator

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and mode != "fp32":
        raise DragomanError("PyTorch finds no GPU")
    kind = getattr(torch, TORCH_TYPES[mode])
    if tool != "PyTorch":
        library = import_library("transformers", group="gpu-peers").AutoModelForSeq2SeqLM
        theirs = library.from_pretrained(directory, dtype=kind).to(device).eval()
        if tool == "transformers compiled":
            theirs.generation_config.cache_implementation = "static"
        return generator(theirs)
    decode = text.load_reference(directory, threads, device=device, dtype=kind)
    torch.set_default_device(device)
    torch.set_default_dtype(kind)
    return decode


def describe_gpu() -> str:
    """Return the name and the compute capability of the GPU."""
    from dragoman.runtime.backends.cuda import find_gpu

    gpu = find_gpu()
    return f"{gpu.name}, compute capability {gpu.compute_capability}"
