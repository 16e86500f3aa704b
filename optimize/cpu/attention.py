"""Attention over a complete source -> the operator that is fastest for it.

In the decoder, the rows of a source attend to its keys together: B rows of Q queries become G
sources of B / G * Q queries and, afterwards, rows again. Cross-attention becomes
`com.microsoft.MultiHeadAttention`, to which the padding mask stays [G, S] and is not expanded.

In the encoder, self-attention stays the standard operator, on inputs [B, S, H * Dh], in 0.5 to 0.9
times the time of MultiHeadAttention, except with relative position biases (T5), which need not be
expanded, and in the encoder of a speech model, which has no mask. So does all attention of a
decoder that reads a source once more (BART for classification).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, pattern

from ..graph_pass import FusionRule, RulePass
from ..graph_values import (
    MICROSOFT,
    UnsupportedPatternError,
    last_size,
    made_by,
    new_weight,
    number,
)

LARGEST_MASK_BIAS = -1e4
"""The largest bias that masks a key, which ONNX Runtime's own operators add by default."""


def split_heads(op: Any, x: Any, split: Any, name: str) -> Any:
    """Return the pattern [B, T, H * Dh] -> [B, T, H, Dh], bound to the name, -> [B, H, T, Dh]."""
    return op.Transpose(op.Reshape(x, split, _outputs=[name]), perm=[0, 2, 1, 3])


def merge_heads(op: Any, attended: Any, merge: Any) -> Any:
    """Return the pattern [B, H, T, Dh] -> [B, T, H * Dh]."""
    return op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), merge)


def known_heads(split: ir.Value) -> tuple[int, int] | None:
    """Return the number and size of heads of a value [B, T, H, Dh]; None if unknown."""
    shape = split.shape
    if shape is None or len(shape) != 4:
        return None
    heads, size = shape[2], shape[3]
    return (heads, size) if isinstance(heads, int) and isinstance(size, int) else None


def check_heads(attended: ir.Value, split: ir.Value) -> tuple[int, int]:
    """Return the number and size of heads of an Attention.

    Raises:
        UnsupportedPatternError: also if attributes have no equivalent in ONNX Runtime's operators.
    """
    heads = known_heads(split)
    if unknown := sorted(set(made_by(attended).attributes) - {"scale"}):
        raise UnsupportedPatternError(f"expected no attributes except scale, found {unknown}")
    if heads is None:
        raise UnsupportedPatternError(
            f"expected heads [B, Q, H, Dh] of known size, found {split.shape}"
        )
    return heads


def check_masked(masked: ir.Value | None) -> None:
    """Refuse a bias of masked keys that does not mask them."""
    if masked is not None and not (number(masked) or 0) <= LARGEST_MASK_BIAS:
        raise UnsupportedPatternError(
            f"expected a bias of {LARGEST_MASK_BIAS:g} or less for masked keys"
        )


def check_value_size(attended: ir.Value, operator: str) -> None:
    """Refuse values of another size than keys, which the operator does not take."""
    key, value = map(last_size, made_by(attended).inputs[1:3])
    if key != value:
        raise UnsupportedPatternError(
            f"expected values of the size of keys, {key}, as {operator} requires, found {value}"
        )


def attributes(attended: ir.Value, split: ir.Value) -> dict[str, Any]:
    """Return number of heads and scale, as attributes of ONNX Runtime's own operators."""
    heads = known_heads(split)
    assert heads is not None
    scale = made_by(attended).attributes.get_float("scale", None)
    return {"num_heads": heads[0]} | ({} if scale is None else {"scale": scale})


MASK_FILTER_VALUE = float(np.finfo(np.float32).min)
"""The number added to the scores of padding.

The operator's default, -10000, is not small enough for models that were trained to attend
sharply."""


class _MaskedAttention(FusionRule):
    """Attention (opset 23) with a padding mask [G, S] that is expanded to [G, 1, Q', S].

    q [B, Q, H * Dh]; k, v [B, S, H * Dh], or [G, H, S, Dh] if `split_keys` -> [B, Q, H * Dh].
    If `biased`, biases [1, H, Q, S] are added to the scores of all keys except padding.
    If `causal`, the mask is [B, Q, S] and is not expanded.

    A query whose keys are all masked gets an average instead of zeros. In a bundle every source has
    a token; in `foreign` graphs, of which this is not known, the candidates are refused.
    """

    def __init__(
        self,
        *,
        split_keys: bool,
        biased: bool = False,
        foreign: bool = False,
        causal: bool = False,
    ) -> None:
        name = "cross-attention" if split_keys else "self-attention"
        kind = "biased-" if biased else "causal-" if causal else ""
        super().__init__(kind + name)
        self.split_keys, self.biased, self.foreign = split_keys, biased, foreign
        self.causal = causal

    def pattern(
        self,
        op: Any,
        query: Any,
        key: Any,
        value: Any,
        source_mask: Any,
        split: Any,
        value_split: Any,
        merge: Any,
        bias: Any,
        masked: Any,
    ) -> Any:
        mask = op.Unsqueeze(source_mask, pattern.ANY_VALUE, _outputs=["wide_mask"])
        if self.biased:
            mask = op.Where(mask, bias, masked)
        elif not self.causal:
            mask = op.Expand(mask, pattern.ANY_VALUE)
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            key if self.split_keys else split_heads(op, key, split, "key_heads"),
            value if self.split_keys else split_heads(op, value, value_split, "value_heads"),
            mask,
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge)

    def refusal(
        self,
        context: Any,
        query: ir.Value,
        query_heads: ir.Value,
        key: ir.Value,
        source_mask: ir.Value,
        wide_mask: ir.Value,
        attended: ir.Value,
        bias: ir.Value | None = None,
        masked: ir.Value | None = None,
        **_: Any,
    ) -> str:
        check_heads(attended, query_heads)
        if self.foreign:
            return (
                "expected a bundle, whose sources have at least one token: MultiHeadAttention "
                "would give a query whose keys are all masked an average instead of zeros"
            )
        if self.split_keys and (key.shape is None or len(key.shape) != 4):
            return f"expected keys [G, H, S, Dh], found {key.shape}"
        if not self.split_keys and _shares_sources(query, query_heads):
            return "expected as many rows of queries as of keys"
        if source_mask.dtype != ir.DataType.BOOL:
            return f"expected a bool mask, found {source_mask.dtype}"
        wide = wide_mask.shape
        if wide is None or len(wide) != 4 or wide[1] != 1 or (wide[2] != 1 and not self.causal):
            queries = "Q" if self.causal else 1
            return f"expected a mask [G, 1, {queries}, S], found {wide}"
        check_masked(masked)
        if bias is not None and (bias.shape is None or len(bias.shape) != 4):
            return f"expected biases [1, H, Q, S], found {bias.shape}"
        if self.split_keys:
            check_value_size(attended, "MultiHeadAttention with separate heads")
        return ""

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        source_mask: ir.Value,
        merge: ir.Value,
        query_heads: ir.Value,
        attended: ir.Value,
        bias: ir.Value | None = None,
        **_: Any,
    ) -> Any:
        shared = _shares_sources(query, query_heads)
        result = op.MultiHeadAttention(
            _by_source(op, query, query_heads, source_mask) if shared else query,
            key,
            value,
            None,
            op.Cast(source_mask, to=ir.DataType.INT32),
            *([] if bias is None else [bias]),
            mask_filter_value=MASK_FILTER_VALUE,
            **attributes(attended, query_heads),
            _domain=MICROSOFT,
        )
        return op.Reshape(result, merge) if shared else result


class _WholeSelfAttention(_MaskedAttention):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__(split_keys=False, causal=causal)

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        query_heads: ir.Value,
        attended: ir.Value,
        **_: Any,
    ) -> Any:
        mask, made = made_by(attended).inputs[3], attributes(attended, query_heads)
        heads = made.pop("num_heads")
        return op.Attention(query, key, value, mask, q_num_heads=heads, kv_num_heads=heads, **made)


def _shares_sources(query: ir.Value, query_heads: ir.Value) -> bool:
    if query.shape is None or query_heads.shape is None:
        return False
    rows, sources = (
        getattr(shape[0], "value", shape[0]) for shape in (query.shape, query_heads.shape)
    )
    return None not in (rows, sources) and rows != sources


def _by_source(op: Any, query: Any, query_heads: ir.Value, source_mask: ir.Value) -> Any:
    """Reshape [B, Q, H * Dh] to [G, B / G * Q, H * Dh].

    The shape is computed from values that all layers share, so that its nodes are merged.
    """
    heads, graph = known_heads(query_heads), query_heads.graph
    assert heads is not None and isinstance(graph, ir.Graph)
    width = math.prod(heads)
    rest = new_weight(graph, f"by_source_{width}", np.array([-1, width]))
    shape = op.Concat(op.Shape(source_mask, start=0, end=1), rest, axis=0)
    return op.Reshape(query, shape)


class _UnmaskedAttention(FusionRule):
    """Attention (opset 23) over a complete window of audio.

    q, k, v [B, S, H * Dh] -> [B, S, H * Dh].
    """

    name = "unmasked-self-attention"

    def pattern(
        self, op: Any, query: Any, key: Any, value: Any, split: Any, value_split: Any, merge: Any
    ) -> Any:
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            split_heads(op, key, split, "key_heads"),
            split_heads(op, value, value_split, "value_heads"),
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge)

    def refusal(self, context: Any, query_heads: ir.Value, attended: ir.Value, **_: Any) -> str:
        check_heads(attended, query_heads)
        return ""

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        query_heads: ir.Value,
        attended: ir.Value,
        **_: Any,
    ) -> Any:
        return op.MultiHeadAttention(
            query, key, value, **attributes(attended, query_heads), _domain=MICROSOFT
        )


def _has_separate_heads(node: ir.Node) -> bool:
    return (node.op_type, node.domain) == ("Attention", "") and "q_num_heads" not in node.attributes


def _rules(*, foreign: bool) -> list[RewriteRule]:
    return [
        _WholeSelfAttention.rule(),
        _WholeSelfAttention.rule(causal=True),
        _MaskedAttention.rule(split_keys=True, foreign=foreign),
        _MaskedAttention.rule(split_keys=False, biased=True, foreign=foreign),
        _UnmaskedAttention.rule(),
    ]


ATTENTION = RulePass("attention", lambda: _rules(foreign=False), _has_separate_heads)
FOREIGN_ATTENTION = RulePass("attention", lambda: _rules(foreign=True), _has_separate_heads)
"""The pass for graphs of other exporters."""
