"""Fusions of decomposed operators, as exporters write them, to standard ONNX operators."""

from ..graph_pass import GraphPass
from .attention import ATTENTION, EXPAND_MASKS
from .cleanup import CLEANUP, OPSET_PASS
from .gelu import GELU
from .layer_norm import LAYER_NORM

STANDARD_PASSES: tuple[GraphPass, ...] = (
    OPSET_PASS,
    EXPAND_MASKS,
    CLEANUP,
    LAYER_NORM,
    GELU,
    ATTENTION,
)
"""The passes, in the order of their requirements."""

__all__ = [
    "ATTENTION",
    "CLEANUP",
    "EXPAND_MASKS",
    "GELU",
    "LAYER_NORM",
    "OPSET_PASS",
    "STANDARD_PASSES",
]
