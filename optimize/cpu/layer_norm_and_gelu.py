"""Rewriting LayerNormalization and GELU to operators that take less time.

ONNX Runtime's LayerNormalization and SkipLayerNormalization sum with scalar instructions; its
InstanceNormalization, to which each position of a sentence is a channel, is vectorized. The time
for 18 norms of 32 rows of size 512 falls from 2.1 to 0.3 ms on one thread.

Bias and GELU become `com.microsoft.BiasGelu` or `FastGelu`, which read the input once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph_pass import FusionRule, RulePass
from ..graph_values import MICROSOFT, is_weight, made_by


class _LayerNorm(FusionRule):
    """x [B, T, D] -> InstanceNormalization(x) * gain + bias."""

    name = "layer-norm"

    def pattern(self, op: Any, x: Any, gain: Any, bias: Any) -> Any:
        return op.LayerNormalization(x, gain, bias, _outputs=["normalized"])

    def refusal(
        self,
        context: Any,
        x: ir.Value,
        gain: ir.Value,
        bias: ir.Value,
        normalized: ir.Value,
        **_: Any,
    ) -> str:
        axis = made_by(normalized).attributes.get_int("axis", -1)
        if x.shape is None or len(x.shape) != 3 or axis not in (-1, 2):
            return f"expected [B, T, D] normalized over D, found {x.shape}"
        if x.dtype != ir.DataType.FLOAT:
            return f"expected float32, found {x.dtype}"
        if not is_weight(gain, 1) or not is_weight(bias, 1):
            return "expected a gain and a bias that are initializers [D]"
        return ""

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        gain: ir.Value,
        bias: ir.Value,
        normalized: ir.Value,
        **_: Any,
    ) -> Any:
        node = made_by(normalized)
        # Every norm uses the same input, so that these nodes are merged afterwards.
        sized, axis = _same_axis(x, node.graph)
        positions = op.Shape(sized, start=axis, end=axis + 1)
        ones, zeros = (
            op.ConstantOfShape(positions, value=ir.tensor(np.array([number], np.float32)))
            for number in (1, 0)
        )
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        normal = op.InstanceNormalization(x, ones, zeros, epsilon=epsilon)
        return op.Add(op.Mul(normal, gain), bias)


def _same_axis(x: ir.Value, graph: ir.Graph | ir.Function | None) -> tuple[ir.Value, int]:
    """Return a graph input, or x, that has the second axis of x by name, and the axis's index."""
    assert x.shape is not None
    name = getattr(x.shape[1], "value", None)
    for value in () if graph is None or name is None else graph.inputs:
        for axis, size in enumerate(value.shape or ()):
            if getattr(size, "value", None) == name:
                return value, axis
    return x, 1


LAYER_NORM = RulePass(
    "layer-norm",
    _LayerNorm.rules,
    lambda node: node.op_type == "LayerNormalization" and node.domain == "",
)


TANH_TOLERANCE = 1e-4
"""The tolerance for ONNX Runtime's tanh, which is a polynomial approximation."""


class _BiasGelu(FusionRule):
    name = "bias-gelu"

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        return op.Gelu(op.Add(x, bias), _outputs=["activated"])

    def refusal(self, context: Any, x: ir.Value, bias: ir.Value, **_: Any) -> str:
        if not is_weight(bias, 1):
            return "expected a bias that is an initializer [D]"
        return "" if x.dtype == ir.DataType.FLOAT else f"expected float32, found {x.dtype}"

    def rewrite(self, op: Any, x: ir.Value, bias: ir.Value, activated: ir.Value) -> Any:
        fast = made_by(activated).attributes.get_string("approximate", "none") == "tanh"
        return (op.FastGelu if fast else op.BiasGelu)(x, bias, _domain=MICROSOFT)


BIAS_GELU = RulePass(
    "bias-gelu",
    _BiasGelu.rules,
    lambda node: node.op_type == "Gelu" and node.domain == "",
    tolerance=TANH_TOLERANCE,
)
