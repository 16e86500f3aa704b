"""Fusing decomposed GELU, in its erf or tanh form, to Gelu (ONNX, opset 20)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from ..graph_pass import FusionRule, RulePass
from ..graph_values import UnsupportedPatternError, describe, is_number, number, producer

Polynomial = Mapping[int, float]
"""The coefficients of a polynomial, by power."""

EXACT: Polynomial = {1: math.sqrt(0.5)}
TANH: Polynomial = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}

PRECISION = 1e-3
"""The relative tolerance for coefficients, which exporters and half precision round."""


class _FuseGelu(FusionRule):
    """0.5 x (1 + f(polynomial of x)) -> Gelu(x).

    Args:
        half: where the factor 0.5 or the divisor 2 is applied; see `pattern`
    """

    def __init__(self, function: str, half: str) -> None:
        super().__init__(f"gelu-{function.lower()}-half-{half}")
        self.function, self.half = function, half

    def pattern(self, op: Any, x: Any, argument: Any, one: Any, half: Any) -> Any:
        gate = op.Add(getattr(op, self.function)(argument), one)
        match self.half:
            case "before":
                return op.Mul(op.Mul(x, half), gate)
            case "between":
                return op.Mul(x, op.Mul(gate, half))
            case "after":
                return op.Mul(op.Mul(x, gate), half)
            case "divided-before":
                return op.Mul(op.Div(x, half), gate)
            case _:
                return op.Div(op.Mul(x, gate), half)

    def refusal(
        self, context: Any, x: ir.Value, argument: ir.Value, one: ir.Value, half: ir.Value
    ) -> str:
        # A product matches in either order: the constant is the half.
        divided = self.half.startswith("divided")
        if not divided and number(half) is None and number(x) is not None:
            x, half = half, x
        self.x = x
        factor = 2.0 if divided else 0.5
        if not is_number(one, 1):
            return f"expected 1 + {self.function}, found {describe(one)}"
        if not is_number(half, factor):
            return f"expected a factor of {factor}, found {describe(half)}"
        expected = EXACT if self.function == "Erf" else TANH
        actual = polynomial(argument, x)
        if _close(actual, expected):
            return ""
        return (
            f"expected {self.function}({_text(expected)}), found {self.function}({_text(actual)})"
        )

    def rewrite(self, op: Any, **_: Any) -> Any:
        return op.Gelu(self.x, approximate="none" if self.function == "Erf" else "tanh")


def polynomial(value: ir.Value | None, x: ir.Value) -> Polynomial:
    """Return a value as a polynomial in x."""
    if value is x:
        return {1: 1.0}
    if (constant := number(value)) is not None:
        return {0: constant}
    node = producer(value, "Add", "Sub", "Mul", "Div", "Pow", "Neg")
    if node is None:
        raise UnsupportedPatternError(f"expected a polynomial in {x.name}, found {describe(value)}")
    if node.op_type == "Neg":
        return {power: -factor for power, factor in polynomial(node.inputs[0], x).items()}
    a = polynomial(node.inputs[0], x)
    b = polynomial(node.inputs[1], x)
    if node.op_type in ("Div", "Pow") and set(b) != {0}:
        raise UnsupportedPatternError(f"expected {node.op_type} by a number, found by {_text(b)}")
    match node.op_type:
        case "Add":
            return _sum(a, b)
        case "Sub":
            return _sum(a, {power: -factor for power, factor in b.items()})
        case "Mul":
            return _product(a, b)
        case "Div" if b[0]:
            return {power: factor / b[0] for power, factor in a.items()}
        case "Pow" if b[0] in (1, 2, 3):
            result = a
            for _ in range(int(b[0]) - 1):
                result = _product(result, a)
            return result
    raise UnsupportedPatternError(
        f"expected a polynomial in {x.name}, found {node.op_type} by {b[0]:g}"
    )


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return {power: a.get(power, 0) + b.get(power, 0) for power in {*a, *b}}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: dict[int, float] = defaultdict(float)
    for power, factor in a.items():
        for other_power, other_factor in b.items():
            result[power + other_power] += factor * other_factor
    return result


def _close(a: Polynomial, b: Polynomial) -> bool:
    return all(
        math.isclose(a.get(power, 0), b.get(power, 0), rel_tol=PRECISION, abs_tol=PRECISION / 100)
        for power in {*a, *b}
    )


def _text(polynomial: Polynomial) -> str:
    terms = [f"{factor:.4g} x^{power}" for power, factor in sorted(polynomial.items())]
    return " + ".join(terms) or "0"


def _rules() -> Sequence[RewriteRule]:
    halves = ("before", "between", "after", "divided-before", "divided-after")
    return [
        rule
        for function in ("Erf", "Tanh")
        for half in halves
        for rule in _FuseGelu.rule(function, half).commute()
    ]


def _is_gate(node: ir.Node) -> bool:
    """Return whether a node is an Erf, or a Tanh to which 1 is added."""
    if node.op_type != "Tanh":
        return node.op_type == "Erf"
    return any(
        user.op_type == "Add" and any(is_number(value, 1) for value in user.inputs)
        for user, _ in node.outputs[0].uses()
    )


GELU = RulePass(
    "gelu",
    _rules,
    _is_gate,
    requires=frozenset({"opset 23"}),
    ensures=frozenset({"fused gelu"}),
)
