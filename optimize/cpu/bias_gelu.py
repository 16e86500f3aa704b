"""Fusing bias and GELU to `com.microsoft.BiasGelu` or `FastGelu`, which read the input once."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..graph_values import MICROSOFT, is_weight

TANH_TOLERANCE = 1e-4
"""The tolerance for ONNX Runtime's tanh, which is a polynomial approximation."""


class BiasGelu(RewriteRuleClassBase):
    """Gelu(x + bias [D]) (opset 20) -> BiasGelu(x, bias), or FastGelu for the tanh form."""

    def __init__(self) -> None:
        super().__init__("bias-gelu", remove_nodes=False)

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        """Return the pattern to match."""
        return op.Gelu(op.Add(x, bias), _outputs=["activated"])

    def check(self, context: Any, x: ir.Value, bias: ir.Value, **_: Any) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        if not is_weight(bias, 1):
            return result.fail("expected a bias that is an initializer [D]", bias)
        if x.dtype != ir.DataType.FLOAT:
            return result.fail(f"expected float32, found {x.dtype}", x)
        return result

    def rewrite(
        self, op: Any, x: ir.Value, bias: ir.Value, activated: ir.Value, **_: Any
    ) -> ir.Value:
        """Return the replacement."""
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
