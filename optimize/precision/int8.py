"""8-bit weights and activations: `com.microsoft.MatMulIntegerToFloat`.

Weights have one scale per output; of activations see `activations`. Both use all 8 bits: where sums
of such products would saturate, the backend asks for kernels that are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph_values import MICROSOFT, new_weight
from .activations import Activations, Integers, choose
from .calibration import Inputs
from .rounding import Float, Rounded
from .tables import look_up, table


class Int8:
    """See `weights.Scheme`."""

    name = "int8"
    bits = 8
    block: int | None = None
    scale_type: type[np.floating[Any]] = np.float32
    error = 0.15
    """Rounding activations to 8 bits causes an error of 1 to 2 %, and much more with outliers."""

    def form(self, known: Inputs | None) -> Int8Form:
        return Int8Form(*choose(known))

    lookup = staticmethod(look_up)


@dataclass(frozen=True)
class Int8Form:
    """See `weights.Form`."""

    activations: Activations
    reason: str

    @property
    def chosen(self) -> tuple[str, str]:
        return self.activations.name, self.reason

    def round_inputs(self, rows: Float) -> Float:
        return self.activations.round(rows)

    def product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        weight = new_weight(graph, f"{name}.int8", rounded.integers)
        scale = new_weight(graph, f"{name}.scale", rounded.scales[0])
        nodes, integers = self.activations.quantize(graph, x)
        inputs: list[ir.Value | None] = [integers.values, weight, integers.scale, scale]
        inputs.append(integers.zero_point)
        if integers.row_scale is None and bias is not None:
            inputs += [None, bias]
            bias = None
        product = ir.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT)
        return [*nodes, product, *_scaled(product.outputs[0], integers, bias)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """`com.microsoft.QGemm` accepts the table in the layout of embeddings, but only 2 axes. It
        takes a bias only as integers, which costs more than adding it to the logits.
        """
        width, rows = rounded.integers.shape
        weight, scale = table(graph, name, rounded)
        nodes, integers = self.activations.quantize(graph, x)
        flat = ir.node(
            "Reshape", [integers.values, new_weight(graph, "rows", np.array([-1, width]))]
        )
        zeros = new_weight(graph, f"zeros_{rows}", np.zeros(rows, np.int8))
        inputs = [flat.outputs[0], integers.scale, integers.zero_point, weight, scale, zeros]
        product = ir.node("QGemm", inputs, {"transB": 1}, domain=MICROSOFT)
        shape = ir.node("Shape", [x], {"end": -1})
        vocabulary = new_weight(graph, "vocabulary", np.array([rows]))
        logits_shape = ir.node("Concat", [shape.outputs[0], vocabulary], {"axis": 0})
        logits = ir.node("Reshape", [product.outputs[0], logits_shape.outputs[0]])
        scaled = _scaled(logits.outputs[0], integers, bias)
        return [*nodes, flat, product, shape, logits_shape, logits, *scaled]


def _scaled(product: ir.Value, integers: Integers, bias: ir.Value | None) -> list[ir.Node]:
    """What is left to be done after a product of integers."""
    nodes = []
    if integers.row_scale is not None:
        nodes.append(ir.node("Mul", [product, integers.row_scale]))
        product = nodes[-1].outputs[0]
    if bias is not None:
        nodes.append(ir.node("Add", [product, bias]))
    return nodes
