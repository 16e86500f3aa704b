"""Attention over a whole source -> `com.microsoft.MultiHeadAttention`.

Of the decoder it is cross-attention, whose keys and values come from the encoder with their heads
apart; of the encoder self-attention. The mask of padding stays [B, S]: nothing is expanded. Nor is
what is added to the scores for the distance of key and query (T5): it is the same for every row.
The encoder of a speech model has no mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase, pattern

from ..graph_pass import RulePass
from ..values import MICROSOFT, number
from .heads import MASKED, attributes, check_heads, merge_heads, split_heads

HIDDEN = float(np.finfo(np.float32).min)
"""Added to the score of padding. The operator's own choice, -10000, is not below every score of
models that were trained to attend sharply."""


class MaskedAttention(RewriteRuleClassBase):
    """Attention (opset 23) under a mask of padding [B, S], expanded to [B, 1, Q, S].

    q [B, Q, H * Dh]; k, v [B, S, H * Dh], or [B, H, S, Dh] where `heads_apart` -> [B, Q, H * Dh].
    Where `biased`, numbers [1, H, Q, S] are added to the scores of all keys but padding.
    """

    def __init__(self, *, heads_apart: bool, biased: bool = False) -> None:
        name = "cross-attention" if heads_apart else "self-attention"
        super().__init__(f"biased-{name}" if biased else name, remove_nodes=False)
        self.heads_apart, self.biased = heads_apart, biased

    def pattern(
        self,
        op: Any,
        query: Any,
        key: Any,
        value: Any,
        source_mask: Any,
        split: Any,
        merge: Any,
        bias: Any,
        masked: Any,
    ) -> Any:
        mask = op.Unsqueeze(source_mask, pattern.ANY_VALUE, _outputs=["wide_mask"])
        if self.biased:
            mask = op.Where(mask, bias, masked)
        else:
            mask = op.Expand(mask, pattern.ANY_VALUE)
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            key if self.heads_apart else split_heads(op, key, split, "key_heads"),
            value if self.heads_apart else split_heads(op, value, split, "value_heads"),
            mask,
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge)

    def check(
        self,
        context: Any,
        query_heads: ir.Value,
        key: ir.Value,
        source_mask: ir.Value,
        wide_mask: ir.Value,
        attended: ir.Value,
        bias: ir.Value | None = None,
        masked: ir.Value | None = None,
        **_: Any,
    ) -> MatchResult:
        result = check_heads(attended, query_heads)
        if not result:
            return result
        if self.heads_apart and (key.shape is None or len(key.shape) != 4):
            return result.fail(f"expected keys [B, H, S, Dh], found {key.shape}", key)
        if source_mask.dtype != ir.DataType.BOOL:
            return result.fail(f"expected a mask of bool, found {source_mask.dtype}", source_mask)
        wide = wide_mask.shape
        if wide is None or len(wide) != 4 or tuple(wide)[1:3] != (1, 1):
            return result.fail(f"expected a mask [B, 1, 1, S], found {wide}", wide_mask)
        if masked is not None and not (number(masked) or 0) <= MASKED:
            return result.fail(f"expected {MASKED:g} or less added to hide a key", masked)
        if bias is not None and (bias.shape is None or len(bias.shape) != 4):
            return result.fail(f"expected numbers [1, H, Q, S] to add, found {bias.shape}", bias)
        return result

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        source_mask: ir.Value,
        query_heads: ir.Value,
        attended: ir.Value,
        bias: ir.Value | None = None,
        **_: Any,
    ) -> ir.Value:
        result: ir.Value = op.MultiHeadAttention(
            query,
            key,
            value,
            None,
            op.Cast(source_mask, to=ir.DataType.INT32),
            *([] if bias is None else [bias]),
            mask_filter_value=HIDDEN,
            **attributes(attended, query_heads),
            _domain=MICROSOFT,
        )
        return result


class UnmaskedAttention(RewriteRuleClassBase):
    """Attention (opset 23) over a whole window of audio.

    q, k, v [B, S, H * Dh] -> [B, S, H * Dh].
    """

    def __init__(self) -> None:
        super().__init__("unmasked-self-attention", remove_nodes=False)

    def pattern(self, op: Any, query: Any, key: Any, value: Any, split: Any, merge: Any) -> Any:
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            split_heads(op, key, split, "key_heads"),
            split_heads(op, value, split, "value_heads"),
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge)

    def check(
        self, context: Any, query_heads: ir.Value, attended: ir.Value, **_: Any
    ) -> MatchResult:
        return check_heads(attended, query_heads)

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        query_heads: ir.Value,
        attended: ir.Value,
        **_: Any,
    ) -> ir.Value:
        result: ir.Value = op.MultiHeadAttention(
            query, key, value, **attributes(attended, query_heads), _domain=MICROSOFT
        )
        return result


ATTENTION = RulePass(
    "attention",
    lambda: [
        *(MaskedAttention.rule(heads_apart=apart) for apart in (False, True)),
        MaskedAttention.rule(heads_apart=False, biased=True),
        UnmaskedAttention.rule(),
    ],
    lambda node: node.op_type == "Attention" and node.domain == "",
)
