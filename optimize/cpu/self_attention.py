"""Cached self-attention -> `com.microsoft.GroupQueryAttention`.

The standard Attention scores every position in the cache's capacity; this operator reads only those
that have been written. It accepts several queries from position 0, or for a single row. Relative
position biases (T5) are computed once per step, for the written positions and without the mask.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import pattern

from ..graph_pass import FusionRule, RulePass
from ..graph_values import MICROSOFT, number, producer
from .attention import (
    attributes,
    check_heads,
    check_masked,
    check_value_size,
    merge_heads,
    split_heads,
)

HEAD_SIZE_MULTIPLE = 8
"""The multiple that ONNX Runtime's kernel requires of head sizes."""


class _CachedSelfAttention(FusionRule):
    """TensorScatter x 2 + Attention (opset 24) with a causal mask -> GroupQueryAttention.

    q, k, v [B, Q, H * Dh], caches [B, H, C, Dh], position [B] -> [B, Q, H * Dh], caches. The mask
    starts at `position`. It is bool; if `biased`, it is float and contains a bias for each head and
    distance.
    """

    def __init__(self, *, biased: bool) -> None:
        super().__init__("biased-cached-self-attention" if biased else "cached-self-attention")
        self.biased = biased

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
        value_split: Any,
        merge: Any,
        queries: Any,
        capacity: Any,
        zero: Any,
        one: Any,
        by_distance: Any,
        lowest: Any,
        highest: Any,
        first: Any,
        masked: Any,
    ) -> Any:
        present_key = op.TensorScatter(
            past_key, split_heads(op, key, split, "key_heads"), position, axis=2, mode="linear"
        )
        present_value = op.TensorScatter(
            past_value,
            split_heads(op, value, value_split, "value_heads"),
            position,
            axis=2,
            mode="linear",
        )
        query_index = op.Add(
            op.Unsqueeze(position, pattern.ANY_VALUE), op.Range(zero, queries, one)
        )
        query_column = op.Unsqueeze(query_index, pattern.ANY_VALUE, _outputs=["query_column"])
        key_index = op.Range(zero, capacity, one)
        mask = op.Unsqueeze(
            op.LessOrEqual(op.Unsqueeze(key_index, pattern.ANY_VALUE), query_column),
            pattern.ANY_VALUE,
            _outputs=["mask"],
        )
        if self.biased:
            bias = relative_bias(op, key_index, query_column, by_distance, lowest, highest, first)
            mask = op.Where(mask, bias, masked)
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            present_key,
            present_value,
            mask,
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge), present_key, present_value

    def refusal(
        self,
        context: Any,
        query_heads: ir.Value,
        attended: ir.Value,
        zero: ir.Value,
        one: ir.Value,
        mask: ir.Value,
        masked: ir.Value | None = None,
        **_: Any,
    ) -> str:
        check_masked(masked)
        if (number(zero), number(one)) != (0, 1):
            return "expected a mask of positions 0, 1, 2, ..."
        if mask.shape is None or len(mask.shape) != 4 or mask.shape[1] != 1:
            return f"expected a mask [B, 1, Q, C], found {mask.shape}"
        size = check_heads(attended, query_heads)[1]
        if size % HEAD_SIZE_MULTIPLE:
            return (
                f"expected a head size that is a multiple of {HEAD_SIZE_MULTIPLE}, as "
                f"GroupQueryAttention requires, found {size}"
            )
        check_value_size(attended, "GroupQueryAttention")
        return ""

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
        query_column: ir.Value,
        zero: ir.Value,
        one: ir.Value,
        by_distance: ir.Value | None = None,
        lowest: ir.Value | None = None,
        highest: ir.Value | None = None,
        first: ir.Value | None = None,
        **_: Any,
    ) -> Any:
        common = attributes(attended, query_heads)
        # The index of each row's last key, and the number of keys of the longest row. All layers
        # share the inputs of these nodes, so that they are merged afterwards.
        last = op.Sub(op.Add(position, queries), one)
        total = op.Add(op.ReduceMax(last, keepdims=0), one)
        bias_inputs: tuple[Any, ...] = ()
        if self.biased:
            keys = op.Range(zero, total, one)
            bias = relative_bias(op, keys, query_column, by_distance, lowest, highest, first)
            bias_inputs = (None, None, None, bias)
        return op.GroupQueryAttention(
            query,
            key,
            value,
            past_key,
            past_value,
            op.Cast(last, to=ir.DataType.INT32),
            op.Cast(total, to=ir.DataType.INT32),
            *bias_inputs,
            **common,
            kv_num_heads=common["num_heads"],
            _domain=MICROSOFT,
            _outputs=3,
        )


def relative_bias(
    op: Any, key: Any, query: Any, by_distance: Any, lowest: Any, highest: Any, first: Any
) -> Any:
    """Map positions of keys [K] and queries [B, Q, 1] to biases [B, H, Q, K].

    It serves as the pattern and as the replacement. `by_distance` is [distances, H].
    """
    distance = op.Clip(op.Sub(key, query), lowest, highest)
    return op.Transpose(op.Gather(by_distance, op.Add(distance, first)), perm=[0, 3, 1, 2])


SELF_ATTENTION = RulePass(
    "cached-self-attention",
    lambda: [_CachedSelfAttention.rule(biased=biased) for biased in (False, True)],
    lambda node: (
        node.op_type == "Attention" and producer(node.inputs[1], "TensorScatter") is not None
    ),
    ensures=frozenset({"grouped attention"}),
)
