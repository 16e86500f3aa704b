"""8-bit weights and activations: `com.microsoft.MatMulIntegerToFloat`.

Activations are quantized as they come, one scale for a whole tensor (`DynamicQuantizeLinear`, opset
11), once for all products of one input; weights one for each output. Weights use 7 of the 8 bits:
sums of two products of 8 bits saturate on processors without VNNI, and what was verified on one
processor would not hold on another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..values import MICROSOFT, new_weight, users
from .rounding import Float, Rounded
from .tables import look_up, table


class Int8:
    """See `weights.Scheme`."""

    name = "int8"
    bits = 7
    block: int | None = None
    scale_type: type[np.floating[Any]] = np.float32
    error = 0.15
    """Rounding activations to 8 bits costs 2 to 8 % where none stands out; where one does, far
    more."""

    def round_inputs(self, rows: Float) -> Float:
        """Unsigned, with a zero point, one scale for all (`DynamicQuantizeLinear`, opset 11)."""
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
        """`com.microsoft.QGemm` takes the table as embeddings need it, but no more than 2 axes."""
        width, rows = rounded.integers.shape
        weight, scale = table(graph, name, rounded)
        nodes, (integers, x_scale, x_zero) = _quantized(x)
        flat = ir.node("Reshape", [integers, new_weight(graph, "rows", np.array([-1, width]))])
        inputs = [flat.outputs[0], x_scale, x_zero, weight, scale, _zeros(graph, rows)]
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

    lookup = staticmethod(look_up)


def _quantized(x: ir.Value) -> tuple[list[ir.Node], tuple[ir.Value, ...]]:
    """Integers, scale and zero point of an activation, and the node for them if it is a new one."""
    for user in users(x):
        if user.op_type == "DynamicQuantizeLinear":
            return [], tuple(user.outputs)
    node = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    return [node], tuple(node.outputs)


def _zeros(graph: ir.Graph, outputs: int) -> ir.Value:
    return new_weight(graph, f"zeros_{outputs}", np.zeros(outputs, np.int8))
