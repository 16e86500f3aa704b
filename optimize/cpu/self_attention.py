"""Cached self-attention -> `com.microsoft.GroupQueryAttention`.

The standard form scores every position that a cache has room for. This one reads what has been
written: its time does not depend on the capacity, nor on the length of other rows. Several queries
at once it takes from position 0 on, or of one row only: all that decoding and scoring ask for.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase, pattern

from ..graph_pass import RulePass
from ..values import MICROSOFT, number
from .heads import attributes, known_heads, merge_heads, split_heads, unknown_attributes

HEAD_SIZE_MULTIPLE = 8
"""ONNX Runtime's kernel takes only head sizes that are multiples of it."""


class CachedSelfAttention(RewriteRuleClassBase):
    """TensorScatter x 2 + Attention (opset 24) under a mask that is causal from `position` on.

    q, k, v [B, Q, H * Dh], caches [B, H, C, Dh], position [B] -> [B, Q, H * Dh], caches.
    """

    def __init__(self) -> None:
        super().__init__("cached-self-attention", remove_nodes=False)

    def pattern(
        self,
        op: Any,
        query: Any,
        key: Any,
        value: Any,
        past_key: Any,
        past_value: Any,
        position: Any,
        split: Any,
        merge: Any,
        queries: Any,
        capacity: Any,
        zero: Any,
        one: Any,
    ) -> Any:
        present_key = op.TensorScatter(
            past_key, split_heads(op, key, split, "key_heads"), position, axis=2, mode="linear"
        )
        present_value = op.TensorScatter(
            past_value,
            split_heads(op, value, split, "value_heads"),
            position,
            axis=2,
            mode="linear",
        )
        query_index = op.Add(
            op.Unsqueeze(position, pattern.ANY_VALUE), op.Range(zero, queries, one)
        )
        key_index = op.Range(zero, capacity, one)
        mask = op.Unsqueeze(
            op.LessOrEqual(
                op.Unsqueeze(key_index, pattern.ANY_VALUE),
                op.Unsqueeze(query_index, pattern.ANY_VALUE),
            ),
            pattern.ANY_VALUE,
            _outputs=["mask"],
        )
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            present_key,
            present_value,
            mask,
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge), present_key, present_value

    def check(
        self,
        context: Any,
        query_heads: ir.Value,
        attended: ir.Value,
        zero: ir.Value,
        one: ir.Value,
        mask: ir.Value,
        **_: Any,
    ) -> MatchResult:
        result = MatchResult()
        if (number(zero), number(one)) != (0, 1):
            return result.fail("expected a mask of positions counted from 0 by 1", mask)
        if mask.shape is None or len(mask.shape) != 4 or mask.shape[1] != 1:
            return result.fail(f"expected a mask [B, 1, Q, C], found {mask.shape}", mask)
        heads = known_heads(query_heads)
        if heads is None:
            found = query_heads.shape
            return result.fail(f"expected known heads [B, Q, H, Dh], found {found}", query_heads)
        if heads[1] % HEAD_SIZE_MULTIPLE:
            return result.fail(
                f"expected a head size that is a multiple of {HEAD_SIZE_MULTIPLE}, as "
                f"GroupQueryAttention takes, found {heads[1]}",
                query_heads,
            )
        if unknown := unknown_attributes(attended):
            return result.fail(f"expected no attributes but scale, found {unknown}", attended)
        return result

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        past_key: ir.Value,
        past_value: ir.Value,
        position: ir.Value,
        query_heads: ir.Value,
        attended: ir.Value,
        queries: ir.Value,
        **_: Any,
    ) -> Any:
        common = attributes(attended, query_heads)
        one = op.Constant(value_int=1)
        # Index of each row's last key; of all rows, the number of keys of the longest.
        last = op.Sub(op.Add(position, queries), one)
        total = op.Add(op.ReduceMax(last, keepdims=0), one)
        return op.GroupQueryAttention(
            query,
            key,
            value,
            past_key,
            past_value,
            op.Cast(last, to=ir.DataType.INT32),
            op.Cast(total, to=ir.DataType.INT32),
            **common,
            kv_num_heads=common["num_heads"],
            _domain=MICROSOFT,
            _outputs=3,
        )


def _cached_attention(node: ir.Node) -> bool:
    if node.op_type != "Attention" or node.inputs[1] is None:
        return False
    cache = node.inputs[1].producer()
    return cache is not None and cache.op_type == "TensorScatter"


SELF_ATTENTION = RulePass(
    "cached-self-attention",
    lambda: [CachedSelfAttention.rule()],
    _cached_attention,
    ensures=frozenset({"grouped attention"}),
)
