"""Block-quantized weights in 4 or 8 bits: `com.microsoft.MatMulNBits`.

Each block of inputs has one scale. The kernel also quantizes activations by blocks to 8 bits
(accuracy level 4).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..graph_values import MICROSOFT, new_weight
from .rounding import Float, IntegerWeight
from .weights import OneForm

ACCURACY_INT8 = 4


class BlockQuantized(OneForm):
    """The scheme of blocks."""

    block: int

    def __init__(self, bits: int, block: int, error: float) -> None:
        super().__init__(f"int{bits}-blocks", bits, block, error)

    def round_inputs(self, rows: Float) -> Float:
        """Round inputs to 8 bits, with one scale per block of a row."""
        inputs = rows.shape[1]
        padded = np.pad(rows, ((0, 0), (0, -inputs % self.block)))
        blocks = padded.reshape(len(rows), -1, self.block)
        scale = np.abs(blocks).max(axis=2, keepdims=True) / 127
        scale[scale == 0] = 1
        rounded = (np.rint(blocks / scale) * scale).reshape(padded.shape)[:, :inputs]
        return np.asarray(rounded, np.float32)

    def product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a rounded weight."""
        weight, scale = self._weights(graph, name, rounded)
        inputs, outputs = rounded.integers.shape
        attributes = {
            "K": inputs,
            "N": outputs,
            "bits": self.bits,
            "block_size": self.block,
            "accuracy_level": ACCURACY_INT8,
        }
        values = [x, weight, scale, *([] if bias is None else [None, None, bias])]
        return [ir.node("MatMulNBits", values, attributes, domain=MICROSOFT)]

    def lookup(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, ids: ir.Value
    ) -> list[ir.Node]:
        """Make the nodes that look up rows of a table."""
        weight, scale = self._weights(graph, name, rounded)
        last = new_weight(graph, "last_axis", np.array([-1]))
        column = ir.node("Unsqueeze", [scale, last])
        attributes = {
            "bits": self.bits,
            "block_size": self.block,
            "gather_axis": 0,
            "quantize_axis": 2,
        }
        blocks = ir.node(
            "GatherBlockQuantized", [weight, ids, column.outputs[0]], attributes, domain=MICROSOFT
        )
        rank = 0 if ids.shape is None else len(ids.shape)
        inputs = len(rounded.integers)
        shape = new_weight(graph, f"rows_of_{inputs}", np.array([0] * rank + [-1]))
        row = ir.node("Reshape", [blocks.outputs[0], shape])
        return [column, blocks, row]

    def _weights(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight
    ) -> tuple[ir.Value, ir.Value]:
        return (
            new_weight(graph, f"{name}.int{self.bits}", self._packed(rounded)),
            new_weight(graph, f"{name}.scale", np.ascontiguousarray(rounded.scales.T)),
        )

    def _packed(self, rounded: IntegerWeight) -> NDArray[np.uint8]:
        """Pack unsigned integers, the first in the lower half of a byte, padded to whole blocks."""
        inputs, outputs = rounded.integers.shape
        blocks = len(rounded.scales)
        middle = 2 ** (self.bits - 1)
        full = np.full((outputs, blocks * self.block), middle, np.uint8)
        full[:, :inputs] = (rounded.integers.T.astype(np.int16) + middle).astype(np.uint8)
        by_block: NDArray[np.uint8] = full.reshape(outputs, blocks, self.block)
        if self.bits == 8:
            return by_block
        return by_block[..., 0::2] | (by_block[..., 1::2] << np.uint8(4))
