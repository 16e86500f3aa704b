"""Helpers of fusions that match patterns: constants, ranks, and descriptions of values."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from ..graph_values import constant, number

FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


class UnsupportedPatternError(Exception):
    """A fusion does not support a pattern in the graph; says what was expected and found."""


def is_number(value: ir.Value | None, expected: float, *, relative: float = 1e-4) -> bool:
    """Return whether a value is this constant, within the rounding of exporters."""
    actual = number(value)
    return actual is not None and math.isclose(actual, expected, rel_tol=relative)


def first_input(node: ir.Node) -> ir.Value:
    """Return the first input of a node.

    Raises:
        UnsupportedPatternError: the node has none.
    """
    value = node.inputs[0]
    if value is None:
        raise UnsupportedPatternError(f"{node.op_type} {node.name or ''} without its first input")
    return value


def split_constant(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return the variable input and the constant number of a node with two inputs.

    They may be in either order. Returns None if the node does not have one of each.
    """
    for value, other in (node.inputs[:2], node.inputs[1::-1]):
        constant_number = number(other)
        if value is not None and constant_number is not None and number(value) is None:
            return value, constant_number
    return None


def rank(value: ir.Value) -> int | None:
    """Return the number of axes; None if unknown."""
    return len(value.shape) if value.shape is not None else None


def reduction_axes(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction; None if unknown.

    They are an attribute or, since opset 18, an input.
    """
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    array = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None else [int(axis) for axis in array.ravel()]


def describe(value: ir.Value | None) -> str:
    """Describe a value for the reasons of refusals."""
    if value is None:
        return "nothing"
    if (constant_number := number(value)) is not None:
        return f"the number {constant_number:g}"
    shape = "unknown shape" if value.shape is None else f"shape {value.shape}"
    node = value.producer()
    return f"{value.name} ({node.op_type if node is not None else 'an input'}, {shape})"


def make_rule(rule_class: Any, *arguments: Any, **keywords: Any) -> RewriteRule:
    """Make an instance of a rule's class; onnxscript's method for it is untyped."""
    rule: RewriteRule = rule_class.rule(*arguments, **keywords)
    return rule
