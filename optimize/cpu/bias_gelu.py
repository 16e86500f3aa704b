"""Bias and GELU -> `com.microsoft.BiasGelu` or `FastGelu`: one pass over the numbers."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..values import MICROSOFT, weight

TANH_TOLERANCE = 1e-4
"""ONNX Runtime's tanh is a polynomial."""


class BiasGelu(RewriteRuleClassBase):
    """Gelu (opset 20) of a product and its bias [D]."""

    def __init__(self) -> None:
        super().__init__("bias-gelu", remove_nodes=False)

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        return op.Gelu(op.Add(x, bias), _outputs=["activated"])

    def check(self, context: Any, x: ir.Value, bias: ir.Value, **_: Any) -> MatchResult:
        result = MatchResult()
        if not weight(bias, 1):
            return result.fail("expected a bias that is a weight [D]", bias)
        if x.dtype != ir.DataType.FLOAT:
            return result.fail(f"expected float32, found {x.dtype}", x)
        return result

    def rewrite(
        self, op: Any, x: ir.Value, bias: ir.Value, activated: ir.Value, **_: Any
    ) -> ir.Value:
        node = activated.producer()
        assert node is not None
        fast = node.attributes.get_string("approximate", "none") == "tanh"
        make = op.FastGelu if fast else op.BiasGelu
        result: ir.Value = make(x, bias, _domain=MICROSOFT)
        return result


BIAS_GELU = RulePass(
    "bias-gelu",
    lambda: [BiasGelu.rule()],
    lambda node: node.op_type == "Gelu" and node.domain == "",
    tolerance=TANH_TOLERANCE,
)
