"""Further questions that the fusions ask of a value: its producer, its rank, it in words."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from ..values import constant, number

FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


class UnknownFormError(Exception):
    """What stands in the graph is not what a fusion can express; says what was found."""


def is_number(value: ir.Value | None, expected: float, *, relative: float = 1e-4) -> bool:
    """Whether a value is this constant, as closely as exporters write it."""
    found = number(value)
    return found is not None and math.isclose(found, expected, rel_tol=relative)


def first(node: ir.Node) -> ir.Value:
    """The first input, which every operator asked here has."""
    value = node.inputs[0]
    if value is None:
        raise UnknownFormError(f"{node.op_type} {node.name or ''} without its first input")
    return value


def with_number(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Of a node with two inputs, the one that varies and the number that the other is."""
    for value, other in (node.inputs[:2], node.inputs[1::-1]):
        found = number(other)
        if value is not None and found is not None and number(value) is None:
            return value, found
    return None


def rank(value: ir.Value) -> int | None:
    """The number of axes; None: not known."""
    return len(value.shape) if value.shape is not None else None


def axes_of(node: ir.Node) -> list[int] | None:
    """The axes of a reduction, an attribute or (since opset 18) an input; None: not known."""
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    array = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None else [int(axis) for axis in array.ravel()]


def describe(value: ir.Value | None) -> str:
    """A value in words, for refusals."""
    if value is None:
        return "nothing"
    if (found := number(value)) is not None:
        return f"the number {found:g}"
    shape = "unknown shape" if value.shape is None else f"shape {value.shape}"
    node = value.producer()
    return f"{value.name} ({node.op_type if node is not None else 'an input'}, {shape})"


def rule_of(made: Any, *arguments: Any, **named: Any) -> RewriteRule:
    """A rule from its class; the method that makes one has no types."""
    rule: RewriteRule = made.rule(*arguments, **named)
    return rule
