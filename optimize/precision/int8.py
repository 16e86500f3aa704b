"""8-bit weights and activations: `com.microsoft.MatMulIntegerToFloat`.

Activations are quantized dynamically with one scale per tensor (`DynamicQuantizeLinear`, opset 11),
once for all products of the same input; weights have one scale per output. Weights use 7 of the 8
bits: on processors without VNNI, the sum of two 8-bit products saturates, so that results verified
on one processor would not hold on another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph_values import MICROSOFT, new_weight, users
from .rounding import Float, Rounded
from .tables import look_up, table


class Int8:
    """See `weights.Scheme`."""

    name = "int8"
    bits = 7
    block: int | None = None
    scale_type: type[np.floating[Any]] = np.float32
    error = 0.15
    """Rounding activations to 8 bits causes an error of 2 to 8 %, and much more with outliers."""

    def round_inputs(self, rows: Float) -> Float:
        """Rounded to unsigned 8 bits with one scale and zero point (`DynamicQuantizeLinear`, opset
        11)."""
        low, high = min(0.0, float(rows.min())), max(0.0, float(rows.max()))
        scale = (high - low) / 255 or 1.0
        zero = np.rint(-low / scale)
        integers = np.clip(np.rint(rows / scale) + zero, 0, 255)
        return np.asarray((integers - zero) * scale, np.float32)

    def product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        weight = new_weight(graph, f"{name}.int8", rounded.integers)
        scale = new_weight(graph, f"{name}.scale", rounded.scales[0])
        zero = _zeros(graph, rounded.scales.size)
        nodes, (integers, x_scale, x_zero) = _quantized(x)
        inputs = [integers, weight, x_scale, scale, x_zero, zero, bias]
        return [*nodes, ir.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """`com.microsoft.QGemm` accepts the table in the layout of embeddings, but only 2 axes."""
        width, rows = rounded.integers.shape
        weight, scale = table(graph, name, rounded)
        nodes, (integers, x_scale, x_zero) = _quantized(x)
        flat = ir.node("Reshape", [integers, new_weight(graph, "rows", np.array([-1, width]))])
        inputs = [flat.outputs[0], x_scale, x_zero, weight, scale, _zeros(graph, rows)]
        product = ir.node("QGemm", inputs, {"transB": 1}, domain=MICROSOFT)
        shape = ir.node("Shape", [x], {"end": -1})
        logits_shape = ir.node(
            "Concat",
            [shape.outputs[0], new_weight(graph, "vocabulary", np.array([rows]))],
            {"axis": 0},
        )
        logits = ir.node("Reshape", [product.outputs[0], logits_shape.outputs[0]])
        biased = [] if bias is None else [ir.node("Add", [logits.outputs[0], bias])]
        return [*nodes, flat, product, shape, logits_shape, logits, *biased]

    lookup = staticmethod(look_up)


def _quantized(x: ir.Value) -> tuple[list[ir.Node], tuple[ir.Value, ...]]:
    """The node that quantizes an activation, if it is a new one, and its outputs: integers, scale
    and zero point."""
    for user in users(x):
        if user.op_type == "DynamicQuantizeLinear":
            return [], tuple(user.outputs)
    node = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    return [node], tuple(node.outputs)


def _zeros(graph: ir.Graph, outputs: int) -> ir.Value:
    return new_weight(graph, f"zeros_{outputs}", np.zeros(outputs, np.int8))
