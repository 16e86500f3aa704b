"""Masks of attention scores, and what a query gets whose keys are all masked.

The decomposed form gives such a query NaN where the mask is -inf, and an average where it is a
number. ONNX Runtime's Attention gives it zeros in both cases. The mask is therefore raised a little
above the lowest number, and becomes NaN in rows that are -inf throughout, unless the graph turns
NaN into zeros itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ..emulation import HALVES
from ..graph_values import UnsupportedPatternError, constant, producer

LOWEST = 0.98
"""The share of the lowest number of a type that counts as finite for ONNX Runtime's Attention."""
SMALL = -64.0
"""Numbers down to this one, such as biases, keep most bits of a score that they are added to."""


@dataclass(frozen=True)
class Mask:
    """A mask: numbers added to the scores, or a condition under which a number replaces them."""

    value: ir.Value
    """The numbers; with `fill`, the condition."""
    fill: ir.Value | None = None
    """The number that replaces scores."""
    keep: bool = True
    """Whether the scores are kept where the condition is true, or where it is false."""
    factor: float = 1.0
    dtype: ir.DataType = ir.DataType.FLOAT
    """The type of the queries."""

    def identity(self) -> tuple[Any, ...]:
        """Return a key that is equal for masks that `build` makes the same nodes for."""
        return (self.value, self.fill, self.keep, self.factor, self.dtype)

    def range(self, within: Range) -> Range:
        """Return the numbers of the mask after the masks within it."""
        own = numbers_of(self.value if self.fill is None else self.fill)
        if own.lowest is None or within.lowest is None:
            return UNKNOWN
        infinite = own.infinite or within.infinite
        if self.fill is not None:
            return Range(min(own.lowest, within.lowest), infinite)
        return Range(min(0.0, own.lowest * self.factor) + within.lowest, infinite)

    def build(self, op: Any, within: Any) -> Any:
        """Make nodes for the additive mask, in the type of the queries, after the mask `within`."""
        numpy = self.dtype.numpy()
        if self.fill is not None:
            if within is None:
                within = op.Constant(value=ir.tensor(np.zeros((), numpy)))
            pair = (within, self.fill) if self.keep else (self.fill, within)
            return op.Where(self.value, *pair)
        result: Any = self.value
        if self.value.dtype is not None and self.value.dtype != self.dtype:
            result = op.Cast(result, to=int(self.dtype))
        if self.factor != 1:
            result = op.Mul(result, op.Constant(value=ir.tensor(np.array(self.factor, numpy))))
        return result if within is None else op.Add(within, result)


class Range(NamedTuple):
    """The numbers that a mask may hold."""

    lowest: float | None
    """The lowest finite number; None: unknown."""
    infinite: bool
    """Whether it may hold -inf."""


UNKNOWN = Range(None, True)
MOVES = ("Unsqueeze", "Squeeze", "Expand", "Reshape", "Transpose", "Slice", "Identity", "Cast")


def numbers_of(value: ir.Value | None) -> Range:
    """Return the numbers that a value may hold, as far as its constants tell."""
    array = constant(value)
    if array is not None:
        numbers = np.asarray(array, np.float64).ravel()
        finite = numbers[np.isfinite(numbers)]
        lowest = float(finite.min()) if finite.size else np.inf
        return Range(lowest, bool(np.isneginf(numbers).any()))
    if (node := producer(value, *MOVES)) is not None:
        source = node.inputs[0]
        known = source is None or bool(source.dtype and source.dtype.is_floating_point())
        return numbers_of(source) if known or node.op_type != "Cast" else UNKNOWN
    if (node := producer(value, "Where")) is not None:
        yes, no = numbers_of(node.inputs[1]), numbers_of(node.inputs[2])
        if yes.lowest is None or no.lowest is None:
            return UNKNOWN
        return Range(min(yes.lowest, no.lowest), yes.infinite or no.infinite)
    if (node := producer(value, "Gather")) is not None:
        return numbers_of(node.inputs[0]) if constant(node.inputs[0]) is not None else UNKNOWN
    return UNKNOWN


def range_of(masks: Sequence[Mask]) -> Range:
    """Return the numbers that the sum of masks may hold, in the order in which they are applied."""
    numbers = Range(0.0, infinite=False)
    for mask in masks:
        numbers = mask.range(numbers)
    return numbers


def check_type(masks: Sequence[Mask], *, zeros: bool) -> None:
    """Refuse masks with which Attention may give a query without keys something else.

    Raises:
        UnsupportedPatternError: 16-bit numbers are neither -inf nor small: in 16 bits they absorb
            the scores, in float32 they do not, and runtimes do either. Or NaN of float64 becomes 0.
    """
    if not masks:
        return
    lowest, infinite = range_of(masks)
    if masks[0].dtype == ir.DataType.DOUBLE and zeros and infinite:
        raise UnsupportedPatternError(
            "expected float32, found DOUBLE: ONNX Runtime's Attention gives NaN to a query whose "
            "keys are all masked, which becomes 0 in this graph"
        )
    if masks[0].dtype not in HALVES:
        return
    if lowest is None or lowest < SMALL:
        found = "a mask of unknown numbers" if lowest is None else f"{lowest:g}"
        raise UnsupportedPatternError(
            f"expected 16-bit masks of -inf, found {found}: whether a query whose keys are all "
            "masked gets their average depends on the runtime, and differs for Attention"
        )


def total_mask(op: Any, masks: Sequence[Mask], *, zeros: bool) -> Any:
    """Make the sum of masks, such that Attention computes what the decomposed form computed.

    Args:
        masks: in the order in which they are applied
    """
    numpy = masks[0].dtype.numpy()
    lowest_of_type = float(ml_dtypes.finfo(numpy).min)
    total: Any = None
    for mask in masks:
        total = mask.build(op, total)
    numbers = range_of(masks)
    lowest = -np.inf if numbers.lowest is None else numbers.lowest
    infinite = numbers.infinite or lowest < lowest_of_type

    def number(value: float) -> Any:
        return op.Constant(value=ir.tensor(np.array(value, numpy)))

    result = total
    if lowest <= LOWEST * lowest_of_type:
        result = op.Max(total, number(LOWEST * lowest_of_type))
        if infinite:
            result = op.Where(op.Equal(total, number(-np.inf)), total, result)
    if infinite and not zeros:
        row = op.ReduceMax(total, op.Constant(value_ints=[-1]), keepdims=1)
        result = op.Where(op.Equal(row, number(-np.inf)), number(np.nan), result)
    return result
