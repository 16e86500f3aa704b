"""The weights that a graph holds as integers, dequantized as by the nodes that read them.

The operator that reads a weight defines the meaning of its scales, zero points and nibbles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .graph_values import MICROSOFT, constant, users

Array = NDArray[Any]
Float = NDArray[np.float32]

SUFFIXES = (".int8", ".int4")


class Numbers(NamedTuple):
    """The numbers of some outputs of a weight."""

    values: Float
    """The integers times their scales, [inputs, outputs]."""
    step: Float
    """The distance of neighbouring numbers, [inputs, outputs]."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight that a graph holds as integers."""

    name: str
    """The name of the weight before quantization."""
    shape: tuple[int, int]
    """The number of inputs and of outputs."""
    bits: int
    block: int
    """Number of inputs that share a scale."""
    table: bool
    """Whether the weight is looked up, so that each output is the row of a token."""
    read: Callable[[slice], Numbers]
    """Dequantizes some outputs; all at once take four to eight times the integers' memory."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return all numbers, [inputs, outputs]."""
        return self.read(slice(None)).values


def quantized_weights(model: ir.Model) -> Iterator[QuantizedWeight]:
    """Yield all weights that a graph holds as integers, as its nodes read them."""
    readers: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        known = _READERS.get((node.domain, node.op_type))
        value = None if known is None else node.inputs[known[0]]
        if value is not None:
            readers.setdefault(_base(value), []).append(node)
    for nodes in readers.values():
        weight, table = None, False
        for node in nodes:
            _, read = _READERS[node.domain, node.op_type]
            found = read(node)
            if found is not None:
                table = table or found.table
                weight = found if weight is None or not found.table else weight
        if weight is not None:
            yield replace(weight, table=table)


def _base(value: ir.Value) -> str:
    name = value.name or ""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def array(node: ir.Node, index: int) -> Array | None:
    """Return a constant input of a node; None if it is missing or computed."""
    return constant(node.inputs[index]) if index < len(node.inputs) else None


def _integers(value: ir.Value | None) -> bool:
    tensor = None if value is None or not value.is_initializer() else value.const_value
    kinds = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4)
    return tensor is not None and tensor.dtype in kinds


def _by_column(
    value: ir.Value, integers: Array, scale: Array, zero: Array | None, bits: int, *, table: bool
) -> QuantizedWeight:
    inputs, outputs = integers.shape
    scales, zeros = (
        np.broadcast_to(np.asarray(given, np.float32), (1, outputs))
        for given in (scale, 0 if zero is None else zero)
    )

    def read(part: slice) -> Numbers:
        values = integers[:, part].astype(np.float32)
        values -= zeros[:, part]
        values *= scales[:, part]
        return Numbers(values, np.broadcast_to(scales[:, part], values.shape))

    return QuantizedWeight(_base(value), (inputs, outputs), bits, inputs, table, read)


def _product(weight: int, scale: int, zero: int, node: ir.Node) -> QuantizedWeight | None:
    value, integers, scales = node.inputs[weight], array(node, weight), array(node, scale)
    if value is None or not _integers(value) or integers is None or scales is None:
        return None
    if node.attributes.get_int("transB", 0):
        integers = integers.T
    return _by_column(value, integers, scales, array(node, zero), 8, table=False)


Reader = Callable[[ir.Node], QuantizedWeight | None]
"""Returns the weight that a node reads; None if it is not of integers."""

product_of_integers: Reader = partial(_product, 1, 3, 5)
"""Of `MatMulIntegerToFloat`: A, B, a_scale, b_scale, a_zero_point, b_zero_point and bias."""

table_product: Reader = partial(_product, 3, 4, 5)
"""Of `QGemm`: A, a_scale, a_zero_point, B, b_scale, b_zero_point and C."""


def lookup(node: ir.Node) -> QuantizedWeight | None:
    """Return the weight of a `Gather` of integers, which are cast and multiplied by row scales."""
    value = node.inputs[0]
    if value is None or not _integers(value):
        return None
    rows, scales = constant(value), _scales_of_table(node, value)
    if rows is None or scales is None or scales.ndim != 1:
        return None
    return _by_column(value, rows.T, scales, None, 8, table=True)


def _scales_of_table(node: ir.Node, value: ir.Value) -> Array | None:
    graph = node.graph
    return None if graph is None else constant(graph.initializers.get(f"{_base(value)}.scale"))


def block_product(node: ir.Node) -> QuantizedWeight | None:
    """Return the weight of `MatMulNBits`: B [N, G, bytes] and scales [N, G]."""
    packed, scales = array(node, 1), array(node, 2)
    value = node.inputs[1]
    if value is None or packed is None or scales is None or array(node, 4) is not None:
        return None
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 32)
    inputs, outputs = node.attributes.get_int("K", 0), node.attributes.get_int("N", 0)
    scales = scales.reshape(outputs, -1)
    return _of_blocks(value, packed, scales, array(node, 3), bits, block, inputs, table=False)


def block_lookup(node: ir.Node) -> QuantizedWeight | None:
    """Return the weight of `GatherBlockQuantized`: data [V, G, bytes], scales [V, G, 1]."""
    value, packed = node.inputs[0], array(node, 0)
    scales = None if value is None else _scales_of_table(node, value)
    if value is None or packed is None or scales is None or packed.ndim != 3:
        return None
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 128)
    width = packed.shape[1] * block
    return _of_blocks(value, packed, scales, array(node, 3), bits, block, width, table=True)


def _of_blocks(
    value: ir.Value,
    packed: Array,
    scales: Array,
    zero: Array | None,
    bits: int,
    block: int,
    inputs: int,
    *,
    table: bool,
) -> QuantizedWeight:
    outputs, blocks = scales.shape
    packed = packed.reshape(outputs, blocks, -1)
    middle: Array = np.full((outputs, blocks), 2.0 ** (bits - 1), np.float32)
    if zero is not None and zero.dtype == np.uint8:
        middle = _unpacked(zero.reshape(outputs, -1), bits)[:, :blocks].astype(np.float32)
    elif zero is not None:
        middle = zero.reshape(outputs, blocks).astype(np.float32)

    def read(part: slice) -> Numbers:
        wide = scales[part].astype(np.float32)
        values = _unpacked(packed[part], bits).astype(np.float32)
        values -= middle[part, :, None]
        values *= wide[..., None]
        step = np.repeat(wide, block, axis=1)[:, :inputs]
        return Numbers(values.reshape(len(wide), -1)[:, :inputs].T, step.T)

    return QuantizedWeight(_base(value), (inputs, outputs), bits, block, table, read)


def _unpacked(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    both = np.stack([packed & 15, packed >> 4], axis=-1)
    return both.reshape(*packed.shape[:-1], -1)


def dequantized(node: ir.Node) -> QuantizedWeight | None:
    """Return the weight of `DequantizeLinear` (opset 21): x, x_scale, x_zero_point."""
    value = node.inputs[0]
    if value is None or not _integers(value):
        return None
    integers, scale = constant(value), array(node, 1)
    if integers is None or scale is None or integers.ndim != 2:
        return None
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    wide, zero = np.asarray(scale, np.float32), array(node, 2)
    offset = np.zeros_like(wide) if zero is None else np.asarray(zero, np.float32)
    bits = 4 if value.dtype in (ir.DataType.INT4, ir.DataType.UINT4) else 8
    table = _is_table(node)
    axis %= 2
    if table:  # [inputs, outputs], as all others
        integers, wide, offset, axis = integers.T, wide.T, offset.T, 1 - axis
    inputs, outputs = integers.shape
    if wide.ndim == 1:
        wide, offset = (np.expand_dims(given, 1 - axis) for given in (wide, offset))

    def of_each(given: Float, part: slice) -> Float:
        if block and axis == 0:
            return np.repeat(given[:, part], block, axis=0)[:inputs]
        if block:
            return np.repeat(given, block, axis=1)[:, part]
        return np.broadcast_to(given, (inputs, outputs))[:, part]

    def read(part: slice) -> Numbers:
        step = of_each(wide, part)
        return Numbers((integers[:, part].astype(np.float32) - of_each(offset, part)) * step, step)

    return QuantizedWeight(_base(value), (inputs, outputs), bits, block or inputs, table, read)


def _is_table(node: ir.Node) -> bool:
    return any(user.op_type in ("Gather", "Transpose") for user in users(node.outputs[0]))


_READERS: Mapping[tuple[str, str], tuple[int, Reader]] = {
    (MICROSOFT, "MatMulIntegerToFloat"): (1, product_of_integers),
    (MICROSOFT, "QGemm"): (3, table_product),
    (MICROSOFT, "MatMulNBits"): (1, block_product),
    (MICROSOFT, "GatherBlockQuantized"): (0, block_lookup),
    ("", "Gather"): (0, lookup),
    ("", "DequantizeLinear"): (0, dequantized),
}
"""The input that is the weight, and what reads it, by domain and operator."""
