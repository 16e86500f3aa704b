"""What the graphs of a bundle are stored as: ONNX files, or engines built from them.

A tagged union: `format` says which variant it is. Another kind of engine is another variant here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OnnxGraphs:
    """ONNX files, with their weights in one file beside them."""

    format: Literal["onnx"] = "onnx"

    @property
    def capacity(self) -> int | None:
        """The most target positions of a cache; None: as many as the model has."""
        return None


@dataclass(frozen=True)
class Range:
    """Sizes that an axis of an engine may have; kernels are tuned for `best`."""

    smallest: int
    best: int
    largest: int

    @property
    def in_order(self) -> bool:
        """Whether 1 <= smallest <= best <= largest."""
        return 1 <= self.smallest <= self.best <= self.largest


@dataclass(frozen=True)
class Profile:
    """The sizes that kernels are chosen for, of all engines of a bundle.

    Attributes:
        batch: rows
        source: tokens of a source
    """

    batch: Range
    source: Range


@dataclass(frozen=True)
class EngineReport:
    """What an engine consists of.

    Attributes:
        layers: of the network as the parser made it, by kind
        weights: bytes of the graph's weights, by number format
        attentions: attention layers
        fused: fused attention kernels in the engine by name, counted for each profile; None: the
            engine does not say
        dequantizations: products whose weights are dequantized by a separate kernel in every run,
            counted for each profile; None: the engine does not say
    """

    layers: dict[str, int]
    weights: dict[str, int]
    attentions: int
    fused: dict[str, int] | None
    dequantizations: int | None


@dataclass(frozen=True, kw_only=True)
class TensorRTEngines:
    """Engines of TensorRT or TensorRT-RTX; the bundle's target is the package that built them.

    Attributes:
        version: of that package; no other version loads them
        cuda_version: the CUDA version they were built for
        compute_capabilities: of the GPUs they were built for, such as "8.9"; none: the package's
            default
        capacity: target positions that a cache holds, including the start token's
        profiles: in the engines' order
        refittable: whether new weights can be put into them
        reports: by name of the graph
    """

    format: Literal["tensorrt"] = "tensorrt"
    version: str
    cuda_version: str
    compute_capabilities: tuple[str, ...]
    capacity: int
    profiles: tuple[Profile, ...]
    refittable: bool
    reports: dict[str, EngineReport]


Executable = OnnxGraphs | TensorRTEngines
