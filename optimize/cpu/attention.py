"""Attention over a complete source -> the operator that is fastest for it.

In the decoder this is cross-attention, whose keys and values come from the encoder with separate
heads. The rows of a source attend to them together: B rows of Q queries become G sources of
B / G * Q queries and, afterwards, rows again. It becomes `com.microsoft.MultiHeadAttention`, to
which the padding mask stays [G, S] and is not expanded.

In the encoder it is self-attention, which stays the standard operator, as does all attention of a
decoder that reads a source once more (BART for classification). On inputs [B, S, H * Dh] it
splits and merges heads itself, in 0.5 to 0.9 times the time of MultiHeadAttention. Two cases become
MultiHeadAttention: relative position biases (T5), which are the same for every row and are not
expanded either; and the encoder of a speech model, which has no mask.

Other fusions of attention share the patterns of heads, which come first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, RewriteRuleClassBase, pattern

from ..graph_pass import RulePass
from ..graph_values import MICROSOFT, new_weight, number

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


def check_heads(attended: ir.Value, split: ir.Value) -> MatchResult:
    """Fail for an Attention with unknown heads.

    Fail also for attributes that have no direct equivalent in ONNX Runtime's own operators.
    """
    result, node = MatchResult(), attended.producer()
    assert node is not None
    if unknown := sorted(set(node.attributes) - {"scale"}):
        return result.fail(f"expected no attributes except scale, found {unknown}", attended)
    if known_heads(split) is None:
        return result.fail(
            f"expected heads [B, Q, H, Dh] of known size, found {split.shape}", split
        )
    return result


def check_value_size(attended: ir.Value, operator: str) -> MatchResult:
    """Fail for values of another size than keys, which the operator does not take."""
    result, node = MatchResult(), attended.producer()
    assert node is not None
    key, value = (_last_size(node.inputs[index]) for index in (1, 2))
    if key != value:
        reason = f"expected values of the size of keys, {key}, as {operator} requires, found"
        return result.fail(f"{reason} {value}", attended)
    return result


def _last_size(value: ir.Value | None) -> int | None:
    """Return the size of the last axis, if it is known."""
    shape = None if value is None else value.shape
    return shape[-1] if shape is not None and isinstance(shape[-1], int) else None


def attributes(attended: ir.Value, split: ir.Value) -> dict[str, Any]:
    """Return number of heads and scale, as attributes of ONNX Runtime's own operators."""
    node, heads = attended.producer(), known_heads(split)
    assert node is not None and heads is not None
    scale = node.attributes.get_float("scale", None)
    return {"num_heads": heads[0]} | ({} if scale is None else {"scale": scale})


MASK_FILTER_VALUE = float(np.finfo(np.float32).min)
"""The number added to the scores of padding.

The operator's default, -10000, is not small enough for models that were trained to attend
sharply."""


class MaskedAttention(RewriteRuleClassBase):
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
        super().__init__(kind + name, remove_nodes=False)
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
        """Return the pattern to match."""
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

    def check(
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
    ) -> MatchResult:
        """Check what the pattern cannot express."""
        result = check_heads(attended, query_heads)
        if not result:
            return result
        if self.foreign:
            reason = (
                "expected a bundle, whose sources have at least one token: MultiHeadAttention "
                "would give a query whose keys are all masked an average instead of zeros"
            )
            return result.fail(reason, attended)
        if self.split_keys and (key.shape is None or len(key.shape) != 4):
            return result.fail(f"expected keys [G, H, S, Dh], found {key.shape}", key)
        if not self.split_keys and _shares_sources(query, query_heads):
            return result.fail("expected as many rows of queries as of keys", query_heads)
        if source_mask.dtype != ir.DataType.BOOL:
            return result.fail(f"expected a bool mask, found {source_mask.dtype}", source_mask)
        wide = wide_mask.shape
        if wide is None or len(wide) != 4 or wide[1] != 1 or (wide[2] != 1 and not self.causal):
            queries = "Q" if self.causal else 1
            return result.fail(f"expected a mask [G, 1, {queries}, S], found {wide}", wide_mask)
        if masked is not None and not (number(masked) or 0) <= LARGEST_MASK_BIAS:
            reason = f"expected a bias of {LARGEST_MASK_BIAS:g} or less for masked keys"
            return result.fail(reason, masked)
        if bias is not None and (bias.shape is None or len(bias.shape) != 4):
            return result.fail(f"expected biases [1, H, Q, S], found {bias.shape}", bias)
        if self.split_keys:
            return check_value_size(attended, "MultiHeadAttention with separate heads")
        return result

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
    ) -> ir.Value:
        """Return the replacement."""
        shared = _shares_sources(query, query_heads)
        result: ir.Value = op.MultiHeadAttention(
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


class WholeSelfAttention(MaskedAttention):
    """Self-attention -> the standard operator on inputs [B, S, H * Dh]."""

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
    ) -> ir.Value:
        """Return the replacement."""
        node, made = attended.producer(), attributes(attended, query_heads)
        assert node is not None
        heads = made.pop("num_heads")
        result: ir.Value = op.Attention(
            query, key, value, node.inputs[3], q_num_heads=heads, kv_num_heads=heads, **made
        )
        return result


def _shares_sources(query: ir.Value, query_heads: ir.Value) -> bool:
    """Return whether splitting heads changes the first axis, from rows to their sources."""
    if query.shape is None or query_heads.shape is None:
        return False
    rows, sources = (
        getattr(shape[0], "value", shape[0]) for shape in (query.shape, query_heads.shape)
    )
    return None not in (rows, sources) and rows != sources


def _by_source(op: Any, query: Any, query_heads: ir.Value, source_mask: ir.Value) -> Any:
    """Reshape [B, Q, H * Dh] to [G, B / G * Q, H * Dh].

    The shape is computed from values that all layers share, so that its nodes are merged
    afterwards.
    """
    heads, graph = known_heads(query_heads), query_heads.graph
    assert heads is not None and isinstance(graph, ir.Graph)
    width = math.prod(heads)
    rest = new_weight(graph, f"by_source_{width}", np.array([-1, width]))
    shape = op.Concat(op.Shape(source_mask, start=0, end=1), rest, axis=0)
    return op.Reshape(query, shape)


class UnmaskedAttention(RewriteRuleClassBase):
    """Attention (opset 23) over a complete window of audio.

    q, k, v [B, S, H * Dh] -> [B, S, H * Dh].
    """

    def __init__(self) -> None:
        super().__init__("unmasked-self-attention", remove_nodes=False)

    def pattern(
        self, op: Any, query: Any, key: Any, value: Any, split: Any, value_split: Any, merge: Any
    ) -> Any:
        """Return the pattern to match."""
        attended = op.Attention(
            split_heads(op, query, split, "query_heads"),
            split_heads(op, key, split, "key_heads"),
            split_heads(op, value, value_split, "value_heads"),
            _outputs=["attended"],
        )
        return merge_heads(op, attended, merge)

    def check(
        self, context: Any, query_heads: ir.Value, attended: ir.Value, **_: Any
    ) -> MatchResult:
        """Check what the pattern cannot express."""
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
        """Return the replacement."""
        result: ir.Value = op.MultiHeadAttention(
            query, key, value, **attributes(attended, query_heads), _domain=MICROSOFT
        )
        return result


def _has_separate_heads(node: ir.Node) -> bool:
    return (node.op_type, node.domain) == ("Attention", "") and "q_num_heads" not in node.attributes


def _rules(*, foreign: bool) -> list[RewriteRule]:
    return [
        WholeSelfAttention.rule(),
        WholeSelfAttention.rule(causal=True),
        MaskedAttention.rule(split_keys=True, foreign=foreign),
        MaskedAttention.rule(split_keys=False, biased=True, foreign=foreign),
        UnmaskedAttention.rule(),
    ]


ATTENTION = RulePass("attention", lambda: _rules(foreign=False), _has_separate_heads)
FOREIGN_ATTENTION = RulePass("attention", lambda: _rules(foreign=True), _has_separate_heads)
"""The pass for graphs of other exporters."""
