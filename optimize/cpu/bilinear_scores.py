"""Bilinear scores -> plain ones: q^T W k is (q W) k, and each head's W goes into the weights of the
query's projection.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..graph_values import floats, is_weight, product
from .heads import known_heads, split_heads

FLOAT = ir.DataType.FLOAT


class BilinearScores(RewriteRuleClassBase):
    """Heads of x W_q [B, H, Q, Dh] times W [H, Dh, Dh] -> heads of x (W_q W).

    Sums in another order: rounding differs.
    """

    def __init__(self) -> None:
        super().__init__("bilinear-scores", remove_nodes=False)

    def pattern(self, op: Any, query: Any, split: Any, bilinear: Any) -> Any:
        return op.MatMul(split_heads(op, query, split, "query_heads"), bilinear, _outputs=["q"])

    def check(
        self, context: Any, query: ir.Value, query_heads: ir.Value, bilinear: ir.Value, **_: Any
    ) -> MatchResult:
        result, heads, part = MatchResult(), known_heads(query_heads), product(query)
        if not is_weight(bilinear, 3):
            return result.fail("expected a weight [H, Dh, Dh]", bilinear)
        if heads is None or tuple(bilinear.shape or ()) != (heads[0], heads[1], heads[1]):
            return result.fail("expected a matrix for each head of known size", bilinear)
        if part is None:
            return result.fail("expected a query that is a product by a weight", query)
        for weight in (part.weight, part.bias):
            if weight is not None and (weight.is_graph_input() or weight.dtype != FLOAT):
                return result.fail("expected float32 weights that are not graph inputs", weight)
        return result

    def rewrite(
        self, op: Any, query: ir.Value, split: ir.Value, bilinear: ir.Value, **_: Any
    ) -> ir.Value:
        part, matrices = product(query), floats(bilinear)
        assert part is not None
        folded = op.MatMul(part.x, _folded(op, part.weight, matrices))
        if part.bias is not None:
            folded = op.Add(folded, _folded(op, part.bias, matrices))
        heads: ir.Value = op.Transpose(op.Reshape(folded, split), perm=[0, 2, 1, 3])
        return heads


def _folded(op: Any, weight: ir.Value, matrices: NDArray[np.float32]) -> ir.Value:
    """A weight [..., H * Dh] with each head multiplied by its matrix."""
    numbers = floats(weight)
    heads = numbers.reshape(*numbers.shape[:-1], *matrices.shape[:2])
    name = f"{weight.name}.bilinear"
    product_of_heads = np.einsum("...hi,hij->...hj", heads, matrices).reshape(numbers.shape)
    value: ir.Value = op.initializer(ir.tensor(product_of_heads, name=name), name=name)
    return value


def _by_head(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and is_weight(node.inputs[1], 3)


BILINEAR_SCORES = RulePass("bilinear-scores", lambda: [BilinearScores.rule()], _by_head)
