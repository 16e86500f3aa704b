"""Residual connection and normalization -> `com.microsoft.SkipLayerNormalization`.

With the bias of the sub-layer's last product where there is one.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..values import MICROSOFT, weight


class SkipLayerNorm(RewriteRuleClassBase):
    """LayerNormalization (opset 17) of a sum. Pre-norm uses the sum too: the fourth output."""

    def __init__(self, *, bias: bool, sum_is_used: bool) -> None:
        name = "skip-layer-norm" + ("-bias" if bias else "") + ("-sum" if sum_is_used else "")
        super().__init__(name, remove_nodes=False)
        self.bias, self.sum_is_used = bias, sum_is_used

    def pattern(self, op: Any, x: Any, sublayer: Any, bias: Any, gain: Any, shift: Any) -> Any:
        added = op.Add(sublayer, bias) if self.bias else sublayer
        total = op.Add(x, added, _outputs=["total"])
        normalized = op.LayerNormalization(total, gain, shift, _outputs=["normalized"])
        return (normalized, total) if self.sum_is_used else normalized

    def check(
        self,
        context: Any,
        x: ir.Value,
        total: ir.Value,
        normalized: ir.Value,
        gain: ir.Value,
        shift: ir.Value,
        sublayer: ir.Value,
        bias: ir.Value | None = None,
        **_: Any,
    ) -> MatchResult:
        result = MatchResult()
        node = normalized.producer()
        assert node is not None
        axis = node.attributes.get_int("axis", -1)
        rank = None if total.shape is None else len(total.shape)
        if rank != 3 or axis not in (-1, 2):
            return result.fail(f"expected [B, T, D] normalized over D, found {total.shape}", total)
        if not all(weight(part, 1) for part in (gain, shift)):
            return result.fail("expected a gain and a bias that are weights [D]", node)
        if self.bias and not weight(bias, 1):
            return result.fail("expected a bias that is a weight [D]", total)
        if x.shape != total.shape or sublayer.shape != total.shape:
            found = f"{sublayer.shape} and {x.shape}"
            return result.fail(f"expected two terms {total.shape}, found {found}", total)
        if (len(total.uses()) > 1 or total.is_graph_output()) != self.sum_is_used:
            return result.fail("the sum is used elsewhere" if not self.sum_is_used else "")
        return result

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        sublayer: ir.Value,
        gain: ir.Value,
        shift: ir.Value,
        normalized: ir.Value,
        bias: ir.Value | None = None,
        **_: Any,
    ) -> Any:
        node = normalized.producer()
        assert node is not None
        results = op.SkipLayerNormalization(
            sublayer,
            x,
            gain,
            shift,
            *([bias] if self.bias else []),
            epsilon=node.attributes.get_float("epsilon", 1e-5),
            _domain=MICROSOFT,
            _outputs=4 if self.sum_is_used else 1,
        )
        return (results[0], results[3]) if self.sum_is_used else results


def _of_a_sum(node: ir.Node) -> bool:
    if node.op_type != "LayerNormalization" or node.inputs[0] is None:
        return False
    total = node.inputs[0].producer()
    return (
        total is not None
        and total.op_type == "Add"
        and all(v is not None and v.producer() is not None for v in total.inputs)
    )


SKIP_LAYER_NORM = RulePass(
    "skip-layer-norm",
    lambda: [
        SkipLayerNorm.rule(bias=bias, sum_is_used=used)
        for bias in (True, False)
        for used in (False, True)
    ],
    _of_a_sum,
)
