"""Weight-only quantization: `DequantizeLinear` (opset 21) before each product.

TensorRT supports these standard operators, and ONNX Runtime fuses them.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from dragoman.runtime.format.manifest import Precision

from ..graph_values import new_weight
from ..targets import Schemes, TargetRecipe
from .int8 import look_up, table
from .rounding import IntegerWeight
from .weights import OneForm

TYPES: dict[int, ir.DataType] = {8: ir.DataType.INT8, 4: ir.DataType.INT4}
BLOCK = 32
"""The number of inputs that share a scale in 4 bits."""


class WeightOnly(OneForm):
    """The scheme of dequantized weights."""

    def __init__(self, bits: int, block: int | None, error: float) -> None:
        super().__init__(f"int{bits}-weight-only", bits, block, error)

    @classmethod
    def schemes(
        cls, precision: Precision, graphs: Collection[str], widths: Collection[int]
    ) -> Schemes:
        """Return the schemes of int8 or int4.

        Embeddings have 8 bits: DequantizeLinear has no 4-bit tables to look up tokens in.
        """
        rows = cls(8, None, error=0.05)
        products = rows if precision == "int8" else cls(4, BLOCK, error=0.2)
        return Schemes(dict.fromkeys(graphs, products), rows)

    def product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a rounded weight."""
        integers = rounded.integers.astype(TYPES[self.bits].numpy())
        weight = new_weight(graph, f"{name}.int{self.bits}", integers)
        scales, attributes = rounded.scales[0], {"axis": 1}
        if self.block is not None:
            scales, attributes = rounded.scales, {"axis": 0, "block_size": self.block}
        scale = new_weight(graph, f"{name}.scale", scales)
        dequantize = ir.node("DequantizeLinear", [weight, scale], attributes)
        return [dequantize, *_product(x, dequantize.outputs[0], bias)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a table [V, D], with one scale for each row."""
        integers, scale = table(graph, name, rounded)
        dequantize = ir.node("DequantizeLinear", [integers, scale], {"axis": 0})
        transpose = ir.node("Transpose", dequantize.outputs, {"perm": [1, 0]})
        return [dequantize, transpose, *_product(x, transpose.outputs[0], bias)]

    lookup = staticmethod(look_up)


class EngineWeightOnly(WeightOnly):
    """Weight-only quantization for TensorRT, where only DequantizeLinear reads integers."""

    scale_type = np.float16

    @staticmethod
    def lookup(graph: ir.Graph, name: str, rounded: IntegerWeight, ids: ir.Value) -> list[ir.Node]:
        """Make the nodes that look up rows of a table; engines dequantize only these."""
        integers, scale = table(graph, name, rounded)
        dequantize = ir.node("DequantizeLinear", [integers, scale], {"axis": 0})
        return [dequantize, ir.node("Gather", [dequantize.outputs[0], ids])]


def _product(x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> list[ir.Node]:
    product = ir.node("MatMul", [x, weight])
    return [product] if bias is None else [product, ir.node("Add", [product.outputs[0], bias])]


RECIPE = TargetRecipe(
    passes=lambda graph, model, precision: (),
    schemes=WeightOnly.schemes,
    file_passes=(),
    candidates=True,
)
"""The neutral target."""
