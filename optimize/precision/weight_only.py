"""Integer weights, activations as they are: `DequantizeLinear` (opset 21) before each product.

Standard operators only: what TensorRT reads, and what ONNX Runtime fuses by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..values import new_weight
from .rounding import Float, Rounded
from .tables import look_up, table

TYPES: dict[int, ir.DataType] = {8: ir.DataType.INT8, 4: ir.DataType.INT4}


class WeightOnly:
    """See `weights.Scheme`."""

    scale_type: type[np.floating[Any]] = np.float32

    def __init__(self, bits: int, block: int | None, error: float) -> None:
        self.name = f"int{bits}-weight-only"
        self.bits = bits
        self.block = block
        self.error = error

    def round_inputs(self, rows: Float) -> Float:
        """They stay as they are."""
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
        wide = ir.node("DequantizeLinear", [weight, scale], attributes)
        return [wide, *_product(x, wide.outputs[0], bias)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """The table [V, D] stays as embeddings need it, one scale for each row."""
        integers, scale = table(graph, name, rounded)
        wide = ir.node("DequantizeLinear", [integers, scale], {"axis": 0})
        turned = ir.node("Transpose", wide.outputs, {"perm": [1, 0]})
        return [wide, turned, *_product(x, turned.outputs[0], bias)]

    lookup = staticmethod(look_up)


class EngineWeightOnly(WeightOnly):
    """As TensorRT takes it: integers are read by DequantizeLinear only, with scales in the format
    that they become, fp16."""

    scale_type = np.float16

    @staticmethod
    def lookup(graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
        """The whole table is dequantized, says the graph; the engine's kernel does it for the rows
        that it reads."""
        integers, scale = table(graph, name, rounded)
        wide = ir.node("DequantizeLinear", [integers, scale], {"axis": 0})
        return [wide, ir.node("Gather", [wide.outputs[0], ids])]


def _product(x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> list[ir.Node]:
    product = ir.node("MatMul", [x, weight])
    return [product] if bias is None else [product, ir.node("Add", [product.outputs[0], bias])]
