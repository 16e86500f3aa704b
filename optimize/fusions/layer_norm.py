"""Layer norms and root-mean-square norms that an exporter spelled out.

To LayerNormalization (ONNX, opset 17) and RMSNormalization (ONNX, opset 23).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, RewriteRuleClassBase, pattern

from ..graph_pass import RulePass
from .values import (
    FLOATS,
    UnknownFormError,
    axes_of,
    constant,
    describe,
    first,
    number,
    producer,
    rank,
    with_number,
)


@dataclass(frozen=True)
class Norm:
    """A norm that was found.

    Attributes:
        x: what is normalized
        centred: whether the mean is taken off
        stash_type: the precision it is computed in
    """

    x: ir.Value
    centred: bool
    epsilon: float
    stash_type: ir.DataType


class Normalize(RewriteRuleClassBase):  # type: ignore[misc]
    """A quotient by sqrt(mean of squares + epsilon), times a gain if there is one."""

    def __init__(self, *, gain: bool, cast: bool, form: str) -> None:
        parts = ["normalize", form, "cast" if cast else "", "gain" if gain else ""]
        super().__init__("-".join(part for part in parts if part), remove_nodes=False)
        self.gain, self.cast, self.form = gain, cast, form

    def pattern(self, op: Any, x: Any, y: Any, one: Any, gain: Any) -> Any:
        root = op.Sqrt(y)
        match self.form:
            case "divide":
                result = op.Div(x, root)
            case "reciprocal":
                result = op.Mul(x, op.Reciprocal(root))
            case _:
                result = op.Mul(x, op.Div(one, root))
        if self.cast:
            result = op.Cast(result)
        return op.Mul(result, gain) if self.gain else result

    def check(
        self,
        context: Any,
        x: ir.Value,
        y: ir.Value,
        one: ir.Value | None = None,
        gain: ir.Value | None = None,
    ) -> MatchResult:
        result = MatchResult()
        try:
            if one is not None and number(one) != 1:
                raise UnknownFormError(f"expected 1 divided by the root, found {describe(one)}")
            self.found = find_norm(x, y)
            out = context.output_values[0]
            width = self._width(out)
            if self.gain:
                self._check_gain(gain, width)
            elif width is None:
                raise UnknownFormError(
                    "expected a known size of the last axis, as a norm without gain needs a gain "
                    f"of ones; found {describe(x)}"
                )
            elif any(_is_gain(node, out) for node, _ in out.uses()):
                return result.fail("left to the form with a gain", x)
            if self.cast and out.dtype is not None and self._before_cast().dtype != out.dtype:
                raise UnknownFormError(
                    f"expected a norm cast back to the type it was cast from, "
                    f"{self._before_cast().dtype}, found {out.dtype}"
                )
        except UnknownFormError as error:
            return result.fail(str(error), x)
        return result

    def _width(self, out: ir.Value) -> int | None:
        for value in (self.found.x, out):
            if value.shape is not None and isinstance(value.shape[-1], int):
                return value.shape[-1]
        return None

    def _check_gain(self, gain: ir.Value | None, width: int | None) -> None:
        if gain is None or gain.shape is None or len(gain.shape) != 1:
            raise UnknownFormError(f"expected a gain of one axis, found {describe(gain)}")
        if width is not None and gain.shape[0] not in (width, None):
            raise UnknownFormError(f"expected a gain of {width} numbers, found {describe(gain)}")

    def _before_cast(self) -> ir.Value:
        cast = producer(self.found.x, "Cast")
        return first(cast) if self.cast and cast is not None else self.found.x

    def rewrite(self, op: Any, gain: ir.Value | None = None, **_: Any) -> Any:
        x, found = self._before_cast(), self.found
        if gain is None:
            width = self._width(found.x)
            dtype = (x.dtype or ir.DataType.FLOAT).numpy()
            gain = op.Constant(value=ir.tensor(np.ones(width or 0, dtype)))
        operator = op.LayerNormalization if found.centred else op.RMSNormalization
        return operator(
            x, gain, axis=-1, epsilon=found.epsilon, stash_type=int(found.stash_type)
        )
