"""8-bit weights and activations: `com.microsoft.MatMulIntegerToFloat`.

Activations are quantized as they come, one scale for a whole tensor (`DynamicQuantizeLinear`, opset
11), once for all products of one input; weights one for each output. Weights use 7 of the 8 bits:
sums of two products of 8 bits saturate on processors without VNNI, and what was verified on one
processor would not hold on another.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..values import MICROSOFT, new_weight, users
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
        weight = new_weight(graph, f"{name}.int8", rounded.integers)
        scale, zero = _scale(graph, name, rounded)
        nodes, (integers, x_scale, x_zero) = _quantized(x)
        inputs = [integers, weight, x_scale, scale, x_zero, zero, bias]
        return [*nodes, ir.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """`com.microsoft.QGemm` takes the table as embeddings need it, but no more than 2 axes."""
        width, rows = rounded.integers.shape
        scale, zero = _scale(graph, name, rounded)
        nodes, (integers, x_scale, x_zero) = _quantized(x)
        flat = ir.node("Reshape", [integers, new_weight(graph, "rows", np.array([-1, width]))])
        inputs = [flat.outputs[0], x_scale, x_zero, _table(graph, name, rounded), scale, zero]
        product = ir.node("QGemm", inputs, {"transB": 1}, domain=MICROSOFT)
        shape = ir.node("Shape", [x], {"end": -1})
        whole = ir.node(
            "Concat",
            [shape.outputs[0], new_weight(graph, "vocabulary", np.array([rows]))],
            {"axis": 0},
        )
        logits = ir.node("Reshape", [product.outputs[0], whole.outputs[0]])
        added = [] if bias is None else [ir.node("Add", [logits.outputs[0], bias])]
        return [*nodes, flat, product, shape, whole, logits, *added]

    def lookup(self, graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
        scale, _ = _scale(graph, name, rounded)
        rows = ir.node("Gather", [_table(graph, name, rounded), ids])
        numbers = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT})
        axes = new_weight(graph, "last_axis", np.array([-1]))
        scales = ir.node("Gather", [scale, ids])
        wide = ir.node("Unsqueeze", [scales.outputs[0], axes])
        product = ir.node("Mul", [numbers.outputs[0], wide.outputs[0]])
        return [rows, numbers, scales, wide, product]


def _quantized(x: ir.Value) -> tuple[list[ir.Node], tuple[ir.Value, ...]]:
    """Integers, scale and zero point of an activation, and the node for them if it is a new one."""
    for user in users(x):
        if user.op_type == "DynamicQuantizeLinear":
            return [], tuple(user.outputs)
    node = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    return [node], tuple(node.outputs)


def _scale(graph: ir.Graph, name: str, rounded: Rounded) -> tuple[ir.Value, ir.Value]:
    """Scales [N] and zero points [N], which are 0."""
    zeros = np.zeros(rounded.scales.size, np.int8)
    return (
        new_weight(graph, f"{name}.scale", rounded.scales[0]),
        new_weight(graph, f"zeros_{zeros.size}", zeros),
    )


def _table(graph: ir.Graph, name: str, rounded: Rounded) -> ir.Value:
    """[V, D]"""
    return new_weight(graph, f"{name}.int8", np.ascontiguousarray(rounded.integers.T))
