"""The projection to logits by a tied embedding -> `com.microsoft.FusedMatMul`, which transposes it.

Embeddings are still looked up in the same table [V, D]; there is no transposed copy in memory.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..graph_values import MICROSOFT, is_weight, producer


class TiedOutput(RewriteRuleClassBase):
    """x [B, Q, D] @ Transpose(table [V, D]) -> [B, Q, V]"""

    def __init__(self) -> None:
        super().__init__("tied-output", remove_nodes=False)

    def pattern(self, op: Any, x: Any, table: Any) -> Any:
        return op.MatMul(x, op.Transpose(table, perm=[1, 0]))

    def check(self, context: Any, table: ir.Value, **_: Any) -> MatchResult:
        result = MatchResult()
        if not is_weight(table, 2):
            return result.fail("expected an initializer [V, D]", table)
        return result

    def rewrite(self, op: Any, x: ir.Value, table: ir.Value, **_: Any) -> ir.Value:
        product: ir.Value = op.FusedMatMul(x, table, transB=1, _domain=MICROSOFT)
        return product


def _tied(node: ir.Node) -> bool:
    transpose = producer(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
    return transpose is not None and is_weight(transpose.inputs[0], 2)


TIED_OUTPUT = RulePass("tied-output", lambda: [TiedOutput.rule()], _tied)
