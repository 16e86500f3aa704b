"""Gelu activations that an exporter spelled out, in the erf or the tanh form.

To Gelu (ONNX, opset 20), whatever the order of its factors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..values import number, producer
from .values import UnknownFormError, describe, is_number, rule_of

Polynomial = Mapping[int, float]
"""Coefficients by power."""

EXACT: Polynomial = {1: math.sqrt(0.5)}
TANH: Polynomial = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}

PRECISION = 1e-3
"""How closely an exporter, or half precision, writes those."""


class FuseGelu(RewriteRuleClassBase):
    """0.5 x (1 + f(polynomial of x)), with 0.5 at any of three places."""

    def __init__(self, function: str, place: str) -> None:
        super().__init__(f"gelu-{function.lower()}-half-{place}", remove_nodes=False)
        self.function, self.place = function, place

    def pattern(self, op: Any, x: Any, argument: Any, one: Any, half: Any) -> Any:
        gate = op.Add(getattr(op, self.function)(argument), one)
        match self.place:
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

    def check(
        self, context: Any, x: ir.Value, argument: ir.Value, one: ir.Value, half: ir.Value
    ) -> MatchResult:
        result = MatchResult()
        # Either order matches a product: the number is the half.
        if not self.place.startswith("divided") and number(half) is None and number(x) is not None:
            x, half = half, x
        self.x = x
        factor = 2.0 if self.place.startswith("divided") else 0.5
        if not is_number(one, 1):
            return result.fail(f"expected 1 + {self.function}, found {describe(one)}", one)
        if not is_number(half, factor):
            return result.fail(f"expected a factor of {factor}, found {describe(half)}", half)
        wanted = EXACT if self.function == "Erf" else TANH
        try:
            found = polynomial(argument, x)
        except UnknownFormError as error:
            return result.fail(str(error), argument)
        if not _close(found, wanted):
            return result.fail(
                f"expected {self.function} of {_text(wanted)}, found of {_text(found)}", argument
            )
        return result

    def rewrite(self, op: Any, **_: Any) -> Any:
        return op.Gelu(self.x, approximate="none" if self.function == "Erf" else "tanh")


def polynomial(value: ir.Value | None, x: ir.Value) -> Polynomial:
    """A value as a polynomial of x.

    Raises:
        UnknownFormError: it is none.
    """
    if value is x:
        return {1: 1.0}
    if (constant := number(value)) is not None:
        return {0: constant}
    node = producer(value, "Add", "Sub", "Mul", "Div", "Pow", "Neg")
    if node is None:
        raise UnknownFormError(f"expected a polynomial of {x.name}, found {describe(value)}")
    if node.op_type == "Neg":
        return {power: -factor for power, factor in polynomial(node.inputs[0], x).items()}
    a = polynomial(node.inputs[0], x)
    b = polynomial(node.inputs[1], x)
    if node.op_type in ("Div", "Pow") and set(b) != {0}:
        raise UnknownFormError(f"expected a number in {node.op_type}, found {_text(b)}")
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
    raise UnknownFormError(f"expected a polynomial of {x.name}, found {node.op_type} by {b[0]:g}")


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return {power: a.get(power, 0) + b.get(power, 0) for power in {*a, *b}}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: dict[int, float] = defaultdict(float)
    for power, factor in a.items():
        for other, by in b.items():
            result[power + other] += factor * by
    return result


def _close(found: Polynomial, wanted: Polynomial) -> bool:
    return all(
        math.isclose(
            found.get(power, 0), wanted.get(power, 0), rel_tol=PRECISION, abs_tol=PRECISION / 100
        )
        for power in {*found, *wanted}
    )


def _text(polynomial: Polynomial) -> str:
    terms = [f"{factor:.4g} x^{power}" for power, factor in sorted(polynomial.items())]
    return " + ".join(terms) or "0"


def _rules() -> Sequence[RewriteRule]:
    places = ("before", "between", "after", "divided-before", "divided-after")
    return [
        rule
        for function in ("Erf", "Tanh")
        for place in places
        for rule in rule_of(FuseGelu, function, place).commute()
    ]


def _is_gate(node: ir.Node) -> bool:
    """An Erf; or a Tanh that 1 is added to, as other things use Tanh too."""
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
