"""Recognizing attention scores, the input of the Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ..graph_values import (
    FLOATS,
    UnsupportedPatternError,
    describe,
    first_input,
    number,
    permutation,
    producer,
    rank,
    split_constant,
)
from .attention_masks import Mask

ABSORBS = 16.0
"""A fill value acts like -inf if adjacent floats are this far apart there, since adding a score to
it makes no difference."""


@dataclass(frozen=True)
class Scores:
    """Attention scores: query @ key, scaled, plus masks."""

    query: ir.Value
    key: ir.Value
    """The key before it is transposed for the product."""
    key_order: tuple[int, ...]
    """The permutation from the key's axes to the query's order; empty if equal."""
    rank: int
    """4, or 3 if batch and heads share an axis."""
    scale: float
    masks: Sequence[Mask]

    @property
    def key_axis(self) -> int:
        """The axis of `key` that runs over the keys."""
        return self.key_order[-2] if self.key_order else self.rank - 2


def find_scores(value: ir.Value) -> Scores:
    """Decompose a value into attention scores."""
    masks: list[Mask] = []
    scale = 1.0
    while (product := producer(value, "MatMul")) is None:
        node = producer(value, "Add", "Sub", "Mul", "Div", "Where", "Cast")
        if node is None:
            raise UnsupportedPatternError(
                f"expected query @ key, scaled and masked, as input of the Softmax; found "
                f"{describe(value)}"
            )
        match node.op_type:
            case "Cast":
                value = first_input(node)
                if value.dtype not in FLOATS:
                    raise UnsupportedPatternError(
                        f"expected floating-point scores, found {describe(value)}"
                    )
            case "Mul" | "Div":
                value, factor = _factor(node)
                scale *= factor
            case "Where":
                value, mask = _replaced(node)
                if scale < 0:
                    raise UnsupportedPatternError(
                        f"expected masked scores to stay negative, found a factor of {scale:g}"
                    )
                masks.append(mask)
            case "Sub":
                raise UnsupportedPatternError(
                    f"expected a mask that is added, found {describe(value)}"
                )
            case _:
                value, added = _operands(node)
                masks.append(Mask(added, factor=scale))
    query, key_t = product.inputs[:2]
    if query is None or key_t is None:
        raise UnsupportedPatternError("expected query @ key, found a MatMul with a missing input")
    query, query_scale = _unscaled(query)
    key, order, key_scale = _key(key_t)
    scale = scale * query_scale * key_scale
    size = rank(query)
    if size not in (3, 4) or rank(key) != size:
        raise UnsupportedPatternError(
            f"expected queries and keys with 4 axes (batch, heads, position, size) or 3; found "
            f"{describe(query)} and {describe(key)}"
        )
    dtype = query.dtype or ir.DataType.FLOAT
    if dtype not in FLOATS:
        raise UnsupportedPatternError(f"expected floating-point queries, found {describe(query)}")
    for mask in masks:
        axes = rank(mask.value)
        if axes is None or axes > size:
            raise UnsupportedPatternError(
                f"expected a mask with at most {size} axes, found {describe(mask.value)}"
            )
    if order is None:
        order = (*range(size - 2), size - 1, size - 2)
    masks = [replace(mask, dtype=dtype) for mask in reversed(masks)]
    return Scores(query, key, order, size, scale, masks)


def _factor(node: ir.Node) -> tuple[ir.Value, float]:
    parts = split_constant(node)
    if parts is None or (node.op_type == "Div" and parts[0] is not node.inputs[0]):
        raise UnsupportedPatternError(
            f"expected a constant scale, found {node.op_type} of "
            f"{describe(node.inputs[0])} and {describe(node.inputs[1])}"
        )
    value, factor = parts
    if factor == 0 or not np.isfinite(factor):
        raise UnsupportedPatternError(
            f"expected a scale that is finite and not 0, found {factor:g}"
        )
    return value, factor if node.op_type == "Mul" else 1 / factor


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    scale = 1.0
    while (node := producer(value, "Mul", "Div")) is not None:
        try:
            value, factor = _factor(node)
        except UnsupportedPatternError:
            break  # this product is the query itself
        scale *= factor
    return value, scale


def _replaced(node: ir.Node) -> tuple[ir.Value, Mask]:
    condition, yes, no = node.inputs[:3]
    keep = number(no) is not None
    value, fill = (yes, no) if keep else (no, yes)
    filled = number(fill)
    if value is None or condition is None or fill is None or filled is None:
        raise UnsupportedPatternError(
            f"expected a Where of scores and a number, found {describe(yes)} and {describe(no)}"
        )
    dtype = (fill.dtype or ir.DataType.FLOAT).numpy()
    # Attention adds the number instead of replacing the score, so it must absorb the score.
    with np.errstate(over="ignore"):  # the next number after the largest is infinite
        absorbs = filled < 0 and (
            filled == -np.inf or float(np.spacing(dtype.type(-filled))) >= ABSORBS
        )
    if not absorbs:
        raise UnsupportedPatternError(
            f"expected masked scores to become -inf or close to it, found {filled:g}: adding it "
            "instead would change the weights of a query whose keys are all masked"
        )
    return value, Mask(condition, fill, keep)


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    a, b = node.inputs[:2]
    if a is None or b is None:
        raise UnsupportedPatternError("expected scores + mask, found an Add with a missing input")
    from_a, from_b = _comes_from_product(a), _comes_from_product(b)
    if from_a == from_b:
        operands = "both are" if from_a else "neither is"
        raise UnsupportedPatternError(
            f"expected scores + mask, exactly one of them from query @ key; {operands}: "
            f"{describe(a)}, {describe(b)}"
        )
    return (a, b) if from_a else (b, a)


def _comes_from_product(value: ir.Value | None) -> bool:
    node = producer(value, "MatMul", "Add", "Mul", "Div", "Where", "Cast")
    if node is None:
        return False
    return node.op_type == "MatMul" or any(map(_comes_from_product, node.inputs))


def _key(value: ir.Value) -> tuple[ir.Value, tuple[int, ...] | None, float]:
    """Return the key before transposition, its order of axes (`Scores.key_order`), its scale."""
    value, scale = _unscaled(value)
    if (node := producer(value, "Transpose")) is not None:
        perm = permutation(node)
        key, key_scale = _unscaled(first_input(node))
        if perm in ((0, 1, 3, 2), (0, 2, 1)):
            return key, (), scale * key_scale
        if perm == (0, 2, 3, 1):
            return key, (0, 2, 1, 3), scale * key_scale
    # PyTorch's transposition when the rank is unknown: reshaped to 3 axes, and back to 4.
    unfold = producer(value, "Reshape")
    transpose = producer(first_input(unfold), "Transpose") if unfold is not None else None
    fold = producer(first_input(transpose), "Reshape") if transpose is not None else None
    if transpose is not None and fold is not None:
        key, key_scale = _unscaled(first_input(fold))
        ranks = (rank(key), rank(value))
        if (
            permutation(transpose) == (0, 2, 1)
            and ranks == (4, 4)
            and _may_be_transposed(key, value)
        ):
            return key, (), scale * key_scale
    return value, None, scale


def _may_be_transposed(key: ir.Value, transposed: ir.Value) -> bool:
    if key.shape is None or transposed.shape is None:
        return True
    order = (0, 1, 3, 2)
    pairs = [(key.shape[old], transposed.shape[new]) for new, old in enumerate(order)]
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
