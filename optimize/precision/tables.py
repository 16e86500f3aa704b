"""8-bit embedding tables, and the vocabulary projection that is tied to one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph_values import new_weight
from .rounding import Rounded


def table(graph: ir.Graph, name: str, rounded: Rounded) -> tuple[ir.Value, ir.Value]:
    """Integers [V, D] and scales [V], one per row."""
    return (
        new_weight(graph, f"{name}.int8", np.ascontiguousarray(rounded.integers.T)),
        new_weight(graph, f"{name}.scale", rounded.scales[0]),
    )


def look_up(graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
    """Nodes that gather the rows [..., D] at ids [...] and dequantize only those, to fp32."""
    integers, scale = table(graph, name, rounded)
    rows = ir.node("Gather", [integers, ids])
    numbers = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT})
    scales = ir.node("Gather", [scale, ids])
    last_axis = new_weight(graph, "last_axis", np.array([-1]))
    columns = ir.node("Unsqueeze", [scales.outputs[0], last_axis])
    product = ir.node("Mul", [numbers.outputs[0], columns.outputs[0]])
    return [rows, numbers, scales, columns, product]
