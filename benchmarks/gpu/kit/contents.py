"""What is in the kit, in the order in which it is worth carrying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pack:
    """Packages that are packed, carried and installed together.

    Attributes:
        purpose: what is possible once it has arrived
        wheels: distributions that are downloaded as wheels
        sources: distributions, or paths, that are not on the index as wheels: pure Python
        unless: accepted versions by name; a machine that has them does not need the pack
        optional: without it, something is left out of the results, with the reason
        model: size of the trained speech model that it also holds, with clips to transcribe
    """

    name: str
    purpose: str
    wheels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    unless: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    model: str = ""


PACKS = (
    Pack(
        "tensorrt-rtx",
        "builds and runs engines",
        wheels=("tensorrt-rtx-cu13-libs", "tensorrt-rtx-cu13-bindings"),
        sources=("tensorrt-rtx", "tensorrt-rtx-cu13"),
    ),
    Pack(
        "dragoman",
        "Dragoman and what it imports",
        wheels=(
            *("click", "markdown-it-py", "mdurl", "onnx-ir", "polygraphy", "Pygments"),
            *("RapidFuzz", "rich"),
        ),
        sources=(".",),
    ),
    Pack(
        "cuda-bindings",
        "calls CUDA",
        wheels=("cuda-bindings", "cuda-pathfinder"),
        unless={"cuda-bindings": ">=12.6"},
    ),
    Pack(
        "onnxruntime-gpu",
        "runs graphs on ONNX Runtime's CUDA provider",
        wheels=("flatbuffers", "onnxruntime-gpu"),
    ),
    Pack(
        "whisper-tiny.en",
        "parity of trained Whisper instead of random weights in its shape",
        wheels=("cffi", "pycparser", "soundfile", "soxr"),
        optional=True,
        model="tiny.en",
    ),
    Pack(
        "ctranslate2",
        "is compared with; needs libcublas.so.12 besides, which PyTorch for CUDA 13 does not bring",
        wheels=("ctranslate2",),
        optional=True,
    ),
)

EXTRAS = ("cuda", "export", "tensorrt-rtx")
"""Of Dragoman: their requirements must be in the kit or on the machine."""

GROUPS = ("gpu-peers",)
"""Dependency groups of `pyproject.toml`, likewise."""

LIBRARIES = ("libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13", "libcurand.so.10")
"""What onnxruntime-gpu links to. PyTorch for CUDA 13 brings them."""

PART_BYTES = 45_000_000
