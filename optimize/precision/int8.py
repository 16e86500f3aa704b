"""8-bit weights and activations: `com.microsoft.DynamicQuantizeMatMul`.

Activations are quantized as they come, one scale for a whole tensor; weights one for each output.
Weights use 7 of the 8 bits: sums of two products of 8 bits saturate on processors without VNNI, and
what was verified on one processor would not hold on another.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..values import MICROSOFT, new_weight
from .rounding import Rounded


class Int8:
    """See `weights.Scheme`."""

    name = "int8"
    bits = 7
    block: int | None = None
    error = 0.05

    def product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        weight, scale = self._weights(graph, name, rounded)
        zero = new_weight(
            graph, f"zeros_{rounded.scales.size}", np.zeros(rounded.scales.size, np.int8)
        )
        inputs = [x, weight, scale, zero, *([] if bias is None else [bias])]
        return [ir.node("DynamicQuantizeMatMul", inputs, domain=MICROSOFT)]

    def lookup(self, graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
        weight, scale = self._weights(graph, name, rounded)
        rank = 0 if ids.shape is None else len(ids.shape)
        columns = ir.node("Gather", [weight, ids], {"axis": 1})
        rows = ir.node("Transpose", columns.outputs, {"perm": [*range(1, rank + 1), 0]})
        numbers = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT})
        axes = new_weight(graph, "last_axis", np.array([-1]))
        scales = ir.node("Gather", [scale, ids])
        wide = ir.node("Unsqueeze", [scales.outputs[0], axes])
        product = ir.node("Mul", [numbers.outputs[0], wide.outputs[0]])
        return [columns, rows, numbers, scales, wide, product]

    def _weights(self, graph: ir.Graph, name: str, rounded: Rounded) -> tuple[ir.Value, ir.Value]:
        """Integers [K, N] and scales [N]."""
        return (
            new_weight(graph, f"{name}.int8", rounded.integers),
            new_weight(graph, f"{name}.scale", rounded.scales[0]),
        )
