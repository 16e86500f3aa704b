"""What is under an attention's Softmax: queries, keys, scale and masks, in any known order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ..values import number, producer
from .values import FLOATS, UnknownFormError, describe, first, rank, with_number

ABSORBS = 16.0
"""A fill value is as good as -inf where floats lie this far apart: any score added is lost."""


@dataclass(frozen=True)
class Mask:
    """What is added to the scores.

    Attributes:
        value: the mask; where `fill` is given, a condition
        fill: what takes the place of a score
        keep: whether scores stay where the condition is true
        factor: what the mask is multiplied with
    """

    value: ir.Value
    fill: ir.Value | None = None
    keep: bool = True
    factor: float = 1.0
    dtype: ir.DataType = ir.DataType.FLOAT

    def identity(self) -> tuple[Any, ...]:
        return (self.value, self.fill, self.keep, self.factor, self.dtype)

    def build(self, op: Any) -> Any:
        """The mask as a value, in the type of the queries."""
        numpy = self.dtype.numpy()
        if self.fill is not None:
            zero = op.Constant(value=ir.tensor(np.zeros((), numpy)))
            pair = (zero, self.fill) if self.keep else (self.fill, zero)
            return op.Where(self.value, *pair)
        result: Any = self.value
        if self.value.dtype is not None and self.value.dtype != self.dtype:
            result = op.Cast(result, to=int(self.dtype))
        if self.factor != 1:
            result = op.Mul(result, op.Constant(value=ir.tensor(np.array(self.factor, numpy))))
        return result


@dataclass(frozen=True)
class Scores:
    """Attention scores that were found.

    Attributes:
        key: before its transposition
        key_order: how its axes are to be transposed to be as the query's; empty: they are
        rank: 4, or 3 where batch and heads are one axis
    """

    query: ir.Value
    key: ir.Value
    key_order: tuple[int, ...]
    rank: int
    scale: float
    masks: Sequence[Mask]

    @property
    def key_axis(self) -> int:
        """Which axis of `key` counts the keys."""
        return self.key_order[-2] if self.key_order else self.rank - 2


def find_scores(value: ir.Value) -> Scores:
    """The scores that a value is.

    Raises:
        UnknownFormError: it is none.
    """
    masks: list[Mask] = []
    scale = 1.0
    while (product := producer(value, "MatMul")) is None:
        node = producer(value, "Add", "Sub", "Mul", "Div", "Where", "Cast")
        if node is None:
            raise UnknownFormError(
                f"expected query times key, scaled and masked, under the Softmax; found "
                f"{describe(value)}"
            )
        match node.op_type:
            case "Cast":
                value = first(node)
                if value.dtype not in FLOATS:
                    raise UnknownFormError(f"expected scores of floats, found {describe(value)}")
            case "Mul" | "Div":
                value, factor = _factor(node)
                scale *= factor
            case "Where":
                value, mask = _replaced(node)
                masks.append(mask)
            case "Sub":
                raise UnknownFormError(f"expected a mask that is added, found {describe(value)}")
            case _:
                value, added = _operands(node)
                masks.append(Mask(added, factor=scale))
    query, key_t = product.inputs[:2]
    if query is None or key_t is None:
        raise UnknownFormError("expected query times key, found a MatMul without one")
    query, by = _unscaled(query)
    scale *= by
    key, order, by = _key(key_t)
    scale *= by
    size = rank(query)
    if size not in (3, 4) or rank(key) != size:
        raise UnknownFormError(
            f"expected queries and keys of 4 axes (batch, heads, position, width) or 3; found "
            f"{describe(query)} and {describe(key)}"
        )
    dtype = query.dtype or ir.DataType.FLOAT
    if dtype not in FLOATS:
        raise UnknownFormError(f"expected queries of floats, found {describe(query)}")
    for mask in masks:
        axes = rank(mask.value)
        if axes is None or axes > size:
            raise UnknownFormError(
                f"expected a mask of at most {size} axes, found {describe(mask.value)}"
            )
    if order is None:
        order = (*range(size - 2), size - 1, size - 2)
    masks = [replace(mask, dtype=dtype) for mask in reversed(masks)]
    return Scores(query, key, order, size, scale, masks)


def _factor(node: ir.Node) -> tuple[ir.Value, float]:
    """What is scaled, and by what."""
    parts = with_number(node)
    if parts is None or (node.op_type == "Div" and parts[0] is not node.inputs[0]):
        raise UnknownFormError(
            f"expected a scale that is a number, found {node.op_type} of "
            f"{describe(node.inputs[0])} and {describe(node.inputs[1])}"
        )
    value, by = parts
    if by == 0 or not np.isfinite(by):
        raise UnknownFormError(f"expected a scale that is finite and not 0, found {by:g}")
    return value, by if node.op_type == "Mul" else 1 / by


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    scale = 1.0
    while (node := producer(value, "Mul", "Div")) is not None:
        try:
            value, by = _factor(node)
        except UnknownFormError:
            break  # a product that is the query itself
        scale *= by
    return value, scale


def _replaced(node: ir.Node) -> tuple[ir.Value, Mask]:
    """The scores and the mask of a Where that fills in a number, on either side."""
    condition, yes, no = node.inputs[:3]
    keep = number(no) is not None
    value, fill = (yes, no) if keep else (no, yes)
    found = number(fill)
    if value is None or condition is None or fill is None or found is None:
        raise UnknownFormError(
            f"expected scores replaced by a number, found by {describe(yes)} or {describe(no)}"
        )
    dtype = (fill.dtype or ir.DataType.FLOAT).numpy()
    # Added rather than put in place, the value must swallow the score.
    swallows = found == -np.inf or (found < 0 and float(np.spacing(dtype.type(-found))) >= ABSORBS)
    if not swallows:
        raise UnknownFormError(
            f"expected masked scores to become -inf or nearly, found {found:g}, which would leave "
            "a query without keys other weights if added"
        )
    return value, Mask(condition, fill, keep)


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Of an Add, the scores and the mask."""
    a, b = node.inputs[:2]
    if a is None or b is None:
        raise UnknownFormError("expected scores + mask, found an Add without one")
    from_a, from_b = _comes_from_product(a), _comes_from_product(b)
    if from_a == from_b:
        what = "both are" if from_a else "neither is"
        raise UnknownFormError(
            f"expected scores + mask, of which one is query times key; {what}: {describe(a)}, "
            f"{describe(b)}"
        )
    return (a, b) if from_a else (b, a)


def _comes_from_product(value: ir.Value | None) -> bool:
    node = producer(value, "MatMul", "Add", "Mul", "Div", "Where", "Cast")
    if node is None:
        return False
    return node.op_type == "MatMul" or any(_comes_from_product(v) for v in node.inputs)


def _key(value: ir.Value) -> tuple[ir.Value, tuple[int, ...] | None, float]:
    """The key before it was transposed, how to make it as the query, and by what it was scaled.

    No order where the key is transposed from the start.
    """
    value, scale = _unscaled(value)
    if (node := producer(value, "Transpose")) is not None:
        perm = tuple(node.attributes["perm"].as_ints()) if "perm" in node.attributes else ()
        inner, by = _unscaled(first(node))
        if perm in ((0, 1, 3, 2), (0, 2, 1)):
            return inner, (), scale * by
        if perm == (0, 2, 3, 1):
            return inner, (0, 2, 1, 3), scale * by
    # As PyTorch transposes without knowing the rank: reshaped to 3 axes, and back to 4.
    back = producer(value, "Reshape")
    turn = producer(first(back), "Transpose") if back is not None else None
    there = producer(first(turn), "Reshape") if turn is not None else None
    if turn is not None and there is not None:
        perm = tuple(turn.attributes["perm"].as_ints()) if "perm" in turn.attributes else ()
        inner, by = _unscaled(first(there))
        if perm == (0, 2, 1) and rank(inner) == 4 and rank(value) == 4 and _folds(inner, value):
            return inner, (), scale * by
    return value, None, scale


def _folds(key: ir.Value, turned: ir.Value) -> bool:
    """Whether nothing that is known of both shapes speaks against one being the other turned."""
    if key.shape is None or turned.shape is None:
        return True
    order = (0, 1, 3, 2)
    pairs = [(key.shape[axis], turned.shape[at]) for at, axis in enumerate(order)]
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
