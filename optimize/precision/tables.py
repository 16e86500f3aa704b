"""Tables of 8-bit rows: embeddings, and the vocabulary projection that is tied to them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..values import new_weight
from .rounding import Rounded


def table(graph: ir.Graph, name: str, rounded: Rounded) -> tuple[ir.Value, ir.Value]:
    """Integers [V, D] and scales [V], one for each row."""
    return (
        new_weight(graph, f"{name}.int8", np.ascontiguousarray(rounded.integers.T)),
        new_weight(graph, f"{name}.scale", rounded.scales[0]),
    )


def look_up(graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
    """Nodes for the rows [..., D] at ids [...], in fp32: only these are read and scaled."""
    integers, scale = table(graph, name, rounded)
    rows = ir.node("Gather", [integers, ids])
    numbers = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT})
    scales = ir.node("Gather", [scale, ids])
    wide = ir.node("Unsqueeze", [scales.outputs[0], new_weight(graph, "last_axis", np.array([-1]))])
    product = ir.node("Mul", [numbers.outputs[0], wide.outputs[0]])
    return [rows, numbers, scales, wide, product]
