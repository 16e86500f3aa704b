"""The scale of cross-attention -> the weights of its query.

With a scale of 1, ONNX Runtime reads keys and values of a single query as they lie; with any other
it copies them first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..values import MICROSOFT, floats, new_weight, product


class QueryScale(RewriteRuleClassBase):
    """MultiHeadAttention(x W + b, scale s) -> MultiHeadAttention(x sW + sb, scale 1)

    Exact where s is a power of two, as 1 / sqrt(64) is.
    """

    def __init__(self) -> None:
        super().__init__("query-scale", remove_nodes=False)

    def pattern(self, op: Any, query: Any, key: Any, value: Any) -> Any:
        return op.MultiHeadAttention(
            query, key, value, _domain=MICROSOFT, _allow_other_inputs=True, _outputs=["attended"]
        )

    def check(self, context: Any, query: ir.Value, attended: ir.Value, **_: Any) -> MatchResult:
        result = MatchResult()
        node = attended.producer()
        assert node is not None
        if not _scaled_cross_attention(node):
            return result.fail("not cross-attention, or its scale is 1", attended)
        part = product(query)
        if part is None:
            return result.fail("expected a query that is a product by weights", query)
        return result

    def rewrite(self, op: Any, query: ir.Value, attended: ir.Value, **_: Any) -> ir.Value:
        node, part = attended.producer(), product(query)
        assert node is not None and part is not None
        scale = _scale(node)
        assert scale is not None
        scaled = op.MatMul(part.x, _scaled(part.weight, scale))
        if part.bias is not None:
            scaled = op.Add(scaled, _scaled(part.bias, scale))
        result: ir.Value = op.MultiHeadAttention(
            scaled,
            *node.inputs[1:],
            **dict(node.attributes) | {"scale": 1.0},
            _domain=MICROSOFT,
        )
        return result


def _scaled(weight: ir.Value, scale: float) -> ir.Value:
    graph = weight.graph
    assert graph is not None
    return new_weight(graph, f"{weight.name}.scaled", floats(weight) * np.float32(scale))


def _scaled_cross_attention(node: ir.Node) -> bool:
    return node.op_type == "MultiHeadAttention" and _scale(node) not in (None, 1)


def _scale(node: ir.Node) -> float | None:
    """Of cross-attention, whose keys [B, H, S, Dh] have their heads apart: its attribute, or one
    over the square root of a head's size."""
    key = node.inputs[1]
    shape = None if key is None else key.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return None
    return node.attributes.get_float("scale", 1 / math.sqrt(shape[3]))


QUERY_SCALE = RulePass("query-scale", lambda: [QueryScale.rule()], _scaled_cross_attention)
