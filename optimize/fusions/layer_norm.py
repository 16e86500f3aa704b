"""Fusing decomposed norms to LayerNormalization (opset 17) and RMSNormalization (opset 23)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from ..graph_pass import FusionRule, RulePass
from ..graph_values import (
    FLOATS,
    UnsupportedPatternError,
    constant,
    describe,
    first_input,
    is_number,
    last_size,
    made_by,
    number,
    producer,
    rank,
    reduction_axes,
    split_constant,
)

STASH = frozenset({ir.DataType.FLOAT, ir.DataType.BFLOAT16})
"""The types that both operators can compute in (`stash_type`)."""


@dataclass(frozen=True)
class Norm:
    """A norm without gain and bias."""

    x: ir.Value
    centred: bool
    """Whether the mean is subtracted: layer norm, not RMS norm."""
    epsilon: float


class _Normalize(FusionRule):
    """x / sqrt(mean of squares + epsilon) [* gain] -> LayerNormalization or RMSNormalization."""

    def __init__(self, form: str, *, cast: bool, gain: bool) -> None:
        super().__init__("-".join(["norm", form, *["cast"] * cast, *["gain"] * gain]))
        self.form, self.cast, self.gain = form, cast, gain

    def pattern(self, op: Any, x: Any, y: Any, one: Any, gain: Any) -> Any:
        root = op.Sqrt(y)
        match self.form:
            case "divided":
                result = op.Div(x, root)
            case "times-reciprocal":
                result = op.Mul(x, op.Reciprocal(root))
            case _:
                result = op.Mul(x, op.Div(one, root))
        if self.cast:
            result = op.Cast(result)
        return op.Mul(result, gain) if self.gain else result

    def refusal(
        self,
        context: Any,
        x: ir.Value,
        y: ir.Value,
        one: ir.Value | None,
        gain: ir.Value | None,
    ) -> str:
        out: ir.Value = context.root.outputs[0]
        if one is not None and not is_number(one, 1):
            return f"expected 1 divided by the root, found {describe(one)}"
        self.norm = find_norm(x, y)
        self.x = self._before_cast(context.nodes) if self.cast else self.norm.x
        if self.gain:
            self._check_gain(gain)
        elif any(_gain_of(node, out) is not None for node, _ in out.uses()):
            return "a gain follows, which is part of the norm"
        elif last_size(self.norm.x) is None:
            return (
                "expected a last axis of known size, since a norm without gain needs a gain of "
                f"ones; found {describe(self.norm.x)}"
            )
        return ""

    def _before_cast(self, nodes: Sequence[ir.Node]) -> ir.Value:
        last_cast = next(node for node in nodes if node.op_type == "Cast")
        to = ir.DataType(last_cast.attributes["to"].as_int())
        first_cast = producer(self.norm.x, "Cast")
        before = first_input(first_cast) if first_cast is not None else self.norm.x
        if before.dtype != to or to not in FLOATS:
            raise UnsupportedPatternError(
                f"expected a norm that is cast back to the type of its input, {before.dtype}; "
                f"found a cast to {to}"
            )
        stash = None if first_cast is None else ir.DataType(first_cast.attributes["to"].as_int())
        if stash is not None and stash not in STASH:
            raise UnsupportedPatternError(f"expected a norm computed in FLOAT, found {stash}")
        return before

    def _check_gain(self, gain: ir.Value | None) -> None:
        if gain is None or gain.shape is None or len(gain.shape) != 1:
            raise UnsupportedPatternError(f"expected a gain with one axis, found {describe(gain)}")
        width = last_size(self.norm.x)
        if gain.shape[0] == 1 if width is None else gain.shape[0] != width:
            raise UnsupportedPatternError(
                f"expected a gain as wide as the last axis, {width}; found {describe(gain)}"
            )

    def rewrite(self, op: Any, gain: ir.Value | None, **_: Any) -> Any:
        if gain is None:
            dtype = (self.x.dtype or ir.DataType.FLOAT).numpy()
            gain = op.Constant(value=ir.tensor(np.ones(last_size(self.norm.x) or 0, dtype)))
        operator = op.LayerNormalization if self.norm.centred else op.RMSNormalization
        stash = ir.DataType.FLOAT  # at least as precise as what it replaces, except for double
        return operator(self.x, gain, axis=-1, epsilon=self.norm.epsilon, stash_type=int(stash))


class _AddBias(FusionRule):
    name = "layer-norm-bias"

    def pattern(self, op: Any, x: Any, gain: Any, bias: Any) -> Any:
        return op.Add(op.LayerNormalization(x, gain, _outputs=["norm"]), bias)

    def refusal(
        self, context: Any, gain: ir.Value, bias: ir.Value, norm: ir.Value, **_: Any
    ) -> str:
        array = constant(bias)
        if array is None or gain.shape is None or array.shape != tuple(gain.shape):
            return f"expected a bias as wide as the gain, found {describe(bias)}"
        if made_by(norm).attributes.get_int("axis", -1) != -1:
            return "expected a norm over the last axis"
        return ""

    def rewrite(self, op: Any, x: Any, gain: Any, bias: Any, norm: ir.Value) -> Any:
        return op.LayerNormalization(x, gain, bias, **made_by(norm).attributes)


def find_norm(quotient: ir.Value, radicand: ir.Value) -> Norm:
    """Recognize quotient / sqrt(radicand) as a norm."""
    total = producer(radicand, "Add")
    parts = split_constant(total) if total is not None else None
    if parts is None:
        raise UnsupportedPatternError(
            f"expected sqrt(mean of squares + a number), found sqrt of {describe(radicand)}"
        )
    squares, epsilon = parts
    squared = _mean(squares)
    power = producer(squared, "Pow", "Mul")
    if power is None or not (
        is_number(power.inputs[1], 2)
        if power.op_type == "Pow"
        else power.inputs[0] is power.inputs[1]
    ):
        raise UnsupportedPatternError(
            f"expected a mean of squares, found a mean of {describe(squared)}"
        )
    base = first_input(power)
    # In half precision, x - mean is cast before squaring, or computed twice (PyTorch, opset 11).
    if base is not quotient and _same(base, quotient):
        base = quotient
    if base is not quotient:
        raise UnsupportedPatternError(
            f"expected the squares of the value that is divided, {describe(quotient)}; found those "
            f"of {describe(base)}"
        )
    dtype = base.dtype
    if dtype is not None and dtype not in FLOATS - {ir.DataType.DOUBLE}:
        raise UnsupportedPatternError(
            f"expected a norm computed in FLOAT or fewer bits, found {dtype}"
        )
    minus = producer(base, "Sub")
    mean = producer(minus.inputs[1], "ReduceMean") if minus is not None else None
    if minus is not None and mean is not None and first_input(mean) is first_input(minus):
        _mean(mean.outputs[0])
        return Norm(first_input(minus), True, epsilon)
    return Norm(base, False, epsilon)


def _mean(value: ir.Value) -> ir.Value:
    node = producer(value, "ReduceMean")
    if node is None:
        raise UnsupportedPatternError(f"expected a mean, found {describe(value)}")
    axes, size = reduction_axes(node), rank(first_input(node))
    if axes is None or len(axes) != 1 or axes[0] not in (-1, (size or 0) - 1):
        raise UnsupportedPatternError(
            f"expected a mean over the last axis, found axes {axes} of "
            f"{describe(first_input(node))}"
        )
    if node.attributes.get_int("keepdims", 1) != 1:
        raise UnsupportedPatternError("expected a mean with keepdims 1, found 0")
    return first_input(node)


def _same(a: ir.Value, b: ir.Value) -> bool:
    a, b = _uncast(a), _uncast(b)
    if a is b:
        return True
    one, other = producer(a, "Sub"), producer(b, "Sub")
    if one is None or other is None or first_input(one) is not first_input(other):
        return False
    means = [producer(node.inputs[1], "ReduceMean") for node in (one, other)]
    return all(node is not None and first_input(node) is first_input(one) for node in means)


def _uncast(value: ir.Value) -> ir.Value:
    node = producer(value, "Cast")
    return first_input(node) if node is not None else value


def _gain_of(node: ir.Node, norm: ir.Value) -> ir.Value | None:
    if node.op_type == "Cast":
        out = node.outputs[0]
        return next((g for n, _ in out.uses() if (g := _gain_of(n, out)) is not None), None)
    if node.op_type != "Mul":
        return None
    other = node.inputs[1] if node.inputs[0] is norm else node.inputs[0]
    return other if other is not None and rank(other) == 1 and number(other) is None else None


def _rules() -> Sequence[RewriteRule]:
    forms = ("divided", "times-reciprocal", "times-quotient")
    rules = [
        _AddBias.rule(),
        *(
            _Normalize.rule(form, cast=cast, gain=gain)
            for form, cast, gain in itertools.product(forms, (True, False), (True, False))
        ),
    ]
    return [order for rule in rules for order in rule.commute()]


def _is_root_of_mean(node: ir.Node) -> bool:
    total = producer(node.inputs[0], "Add") if node.op_type == "Sqrt" else None
    parts = split_constant(total) if total is not None else None
    return parts is not None and producer(parts[0], "ReduceMean") is not None


LAYER_NORM = RulePass(
    "layer-norm",
    _rules,
    _is_root_of_mean,
    requires=frozenset({"opset 23"}),
    ensures=frozenset({"fused norms"}),
)
