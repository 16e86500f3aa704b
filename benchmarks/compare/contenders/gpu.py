"""The contenders on a GPU: Dragoman's backends, PyTorch, transformers and CTranslate2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import DragomanError
from dragoman.runtime.backends.table import BACKENDS
from dragoman.runtime.format.manifest import Range

from ...models.bundles import bundle_of_checkpoint, bundle_with_engines
from ...peers import ctranslate2_runtime
from ...peers.interface import Generate, import_library
from ..rounds import Contender, unchanged
from .text import TextContender, Workload, ctranslate2_translators, load_bundle, reference

ENGINES = (
    ("Dragoman RTX fp16", "tensorrt-rtx", "fp16"),
    ("Dragoman RTX bf16", "tensorrt-rtx", "bf16"),
    ("Dragoman RTX int8", "tensorrt-rtx", "int8"),
    ("Dragoman RTX int4", "tensorrt-rtx", "int4"),
    ("Dragoman TensorRT fp16", "tensorrt", "fp16"),
    ("Dragoman TensorRT bf16", "tensorrt", "bf16"),
)
"""Contender, backend (which is the target too) and precision."""

PROVIDER_PRECISIONS = next(b.precisions for b in BACKENDS if b.name == "onnxruntime-cuda") or ()
"""The precisions that ONNX Runtime's CUDA provider runs."""

TORCH_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
"""PyTorch's name of each precision."""


class EngineSizes(NamedTuple):
    """The sizes of engines."""

    batches: tuple[Range, ...]
    """Batch sizes of the profiles."""
    source: Range
    """Source lengths."""
    capacity: int
    """Maximum new tokens."""


def engine_sizes(workload: Workload) -> EngineSizes:
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


def gpu_contenders(sizes: EngineSizes) -> list[TextContender]:
    """List the contenders, the reference first, with engines of these sizes."""
    return [
        reference(partial(load_torch, tool="PyTorch", dtype="float32")),
        *(
            _on_backend(name, backend, precision, partial(prepare_engines, sizes=sizes), backend)
            for name, backend, precision in ENGINES
        ),
        *(
            _on_backend(
                f"Dragoman CUDA {p}", "onnxruntime-cuda", p, bundle_of_checkpoint, "neutral"
            )
            for p in PROVIDER_PRECISIONS
        ),
        *(
            Contender(
                f"{tool} {precision}",
                unchanged,
                partial(load_torch, tool=tool, dtype=dtype),
                precision=precision,
                needs_torch=True,
                peer=True,
            )
            for precision, dtype in TORCH_TYPES.items()
            for tool in ("PyTorch", "transformers", "transformers compiled")
        ),
        *ctranslate2_translators(
            partial(ctranslate2_runtime.load, device="cuda"), TORCH_TYPES.values()
        ),
    ]


def _on_backend(
    name: str, backend: str, precision: str, prepare: Callable[..., Path], target: str
) -> TextContender:
    return Contender(
        name,
        partial(prepare, target=target, precision=precision),
        partial(load_bundle, backend=backend),
        precision=precision,
    )


def prepare_engines(
    checkpoint: Path, directory: Path, *, target: str, precision: str, sizes: EngineSizes
) -> Path:
    """Export a checkpoint and build engines; see `bundle_with_engines`."""
    neutral = bundle_of_checkpoint(checkpoint, directory, target="neutral", precision="fp32")
    return bundle_with_engines(
        neutral, directory, target=target, precision=precision, **sizes._asdict()
    )


def load_torch(directory: Path, threads: int, *, tool: str, dtype: str) -> Generate:
    """Load a checkpoint in PyTorch on the GPU, with its end token disabled.

    float32, which serves as the reference, runs on the CPU if PyTorch finds no GPU.

    Args:
        tool: "PyTorch": the reference model; "transformers"; or "transformers compiled", which
            decodes with a static cache, for which transformers compiles the step
        dtype: name of a torch dtype, such as "float16"
    """
    import torch

    from dragoman.export.families.hugging_face import load_hugging_face
    from dragoman.reference_model import greedy_cached

    from ...peers.hugging_face import generator

    if not torch.cuda.is_available() and dtype != "float32":
        raise DragomanError("PyTorch finds no GPU")
    device, kind = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, dtype)
    if tool != "PyTorch":
        library = import_library("transformers", group="gpu-peers").AutoModelForSeq2SeqLM
        theirs = library.from_pretrained(directory, dtype=kind).to(device).eval()
        if tool == "transformers compiled":
            theirs.generation_config.cache_implementation = "static"
        return generator(theirs)
    model = load_hugging_face(directory).to(device, kind).eval()
    torch.set_default_device(device)
    torch.set_default_dtype(kind)
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf
    return lambda batch: greedy_cached(model, batch.sources, batch.new_tokens)


def describe_gpu() -> str:
    """Return the name and the compute capability of the GPU."""
    from dragoman.runtime.backends.cuda import find_gpu

    gpu = find_gpu()
    return f"{gpu.name}, compute capability {gpu.compute_capability}"
