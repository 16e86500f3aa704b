"""Weight-only quantization: `DequantizeLinear` (opset 21) before each product.

Uses standard operators only, which TensorRT supports and ONNX Runtime fuses on its own.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import onnx_ir as ir

from ..graph_values import new_weight
from .calibration import Inputs
from .rounding import Float, Rounded
from .tables import look_up, table

TYPES: dict[int, ir.DataType] = {8: ir.DataType.INT8, 4: ir.DataType.INT4}


class WeightOnly:
    """See `weights.Scheme`, and `weights.Form`: all products are computed alike."""

    scale_type: type[np.floating[Any]] = np.float32
    chosen: tuple[str, str] | None = None

    def __init__(self, bits: int, block: int | None, error: float) -> None:
        self.name = f"int{bits}-weight-only"
        self.bits = bits
        self.block = block
        self.error = error

    def form(self, known: Inputs | None) -> Self:
        return self

    def round_inputs(self, rows: Float) -> Float:
        """Unchanged: activations are not quantized."""
        return rows

    def product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        integers = rounded.integers.astype(TYPES[self.bits].numpy())
        weight = new_weight(graph, f"{name}.int{self.bits}", integers)
        if self.block is None:
            scale = new_weight(graph, f"{name}.scale", rounded.scales[0])
            attributes = {"axis": 1}
        else:
            scale = new_weight(graph, f"{name}.scale", rounded.scales)
            attributes = {"axis": 0, "block_size": self.block}
        dequantize = ir.node("DequantizeLinear", [weight, scale], attributes)
        return [dequantize, *_product(x, dequantize.outputs[0], bias)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """The table keeps the layout of embeddings, [V, D], with one scale per row."""
        integers, scale = table(graph, name, rounded)
        dequantize = ir.node("DequantizeLinear", [integers, scale], {"axis": 0})
        transpose = ir.node("Transpose", dequantize.outputs, {"perm": [1, 0]})
        return [dequantize, transpose, *_product(x, transpose.outputs[0], bias)]

    lookup = staticmethod(look_up)


class EngineWeightOnly(WeightOnly):
    """Weight-only quantization for TensorRT, in which only DequantizeLinear may read integers, and
    scales have the type of the result, fp16.
    """

    scale_type = np.float16

    @staticmethod
    def lookup(graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
        """The graph dequantizes the complete table; the engine's kernel only the rows it reads."""
        integers, scale = table(graph, name, rounded)
        dequantize = ir.node("DequantizeLinear", [integers, scale], {"axis": 0})
        return [dequantize, ir.node("Gather", [dequantize.outputs[0], ids])]


def _product(x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> list[ir.Node]:
    product = ir.node("MatMul", [x, weight])
    return [product] if bias is None else [product, ir.node("Add", [product.outputs[0], bias])]
