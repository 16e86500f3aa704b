"""Decomposes attention into primitives where no fused kernel supports the head size.

TensorRT-RTX 1.7 decomposes attention itself if it has no kernel for it, except in 16 bits with
several queries and a head size that is not a multiple of 8: there its compiler fails. Attention
over a source has several queries in the decoder too: those of all rows of the source.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..fusions.matching import FLOATS
from ..graph_pass import RulePass
from ..graph_values import producer

MULTIPLE = 8


def needs_primitives(head_size: int) -> bool:
    """Whether attention over a source must be decomposed in 16 bits."""
    return head_size % MULTIPLE != 0


class DecomposeAttention(RewriteRuleClassBase):
    """Attention (opset 23) of q [G, H, Q, Dh] to k, v [G, H, S, Dh] of sources, with a bool mask
    -> softmax(q k^T) v.

    "Attention Is All You Need", section 3.2.1, equation 1.
    """

    def pattern(self, op: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        return op.Attention(query, key, value, mask, _outputs=["attended"])

    def check(
        self, context: Any, query: ir.Value, mask: ir.Value, attended: ir.Value, **_: Any
    ) -> MatchResult:
        result = MatchResult()
        node = attended.producer()
        if node is None or set(node.attributes) - {"scale"}:
            return result.fail("expected no attributes but scale", attended)
        if not _to_source(node):
            return result.fail("expected attention over a source, found one over a cache", attended)
        if query.shape is None or len(query.shape) != 4 or not isinstance(query.shape[3], int):
            return result.fail(f"expected queries [G, H, Q, Dh], found {query.shape}", query)
        if query.dtype not in FLOATS or mask.dtype != ir.DataType.BOOL:
            return result.fail(f"expected a mask of bool, found {mask.dtype}", mask)
        return result

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        mask: ir.Value,
        attended: ir.Value,
    ) -> ir.Value:
        node = attended.producer()
        assert node is not None and query.shape is not None and query.dtype is not None
        size = query.shape[3]
        assert isinstance(size, int)
        dtype = query.dtype.numpy()
        scale = node.attributes.get_float("scale", 1 / math.sqrt(size))
        scaled = op.Mul(query, op.Constant(value=ir.tensor(np.array(scale, dtype))))
        scores = op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2]))
        minus_infinity = op.Constant(value=ir.tensor(np.array(-np.inf, dtype)))
        result: ir.Value = op.MatMul(
            op.Softmax(op.Where(mask, scores, minus_infinity), axis=-1), value
        )
        return result


def _to_source(node: ir.Node) -> bool:
    """Whether a node is attention, but not to keys in a cache, which has one query."""
    known = node.op_type == "Attention" and not node.domain
    return known and producer(node.inputs[1], "TensorScatter") is None


PRIMITIVE_ATTENTION = RulePass(
    "primitive-attention", lambda: [DecomposeAttention.rule()], _to_source
)
