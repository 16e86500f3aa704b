"""Folding factors of attention scores into the weights of the query projection.

With a scale of 1 and a single query, ONNX Runtime reads the keys and values of cross-attention in
place; with any other scale it copies them first. Between projection and attention, a reshape may
put the queries of all rows of a source together. Bilinear scores q^T W k are (q W) k, so that each
head's W goes into the weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..graph_values import MICROSOFT, floats, folded_weight, is_weight, producer, product
from .attention import known_heads, split_heads


class QueryScale(RewriteRuleClassBase):
    """MultiHeadAttention(x W + b, scale s) -> MultiHeadAttention(x sW + sb, scale 1).

    It is exact if s is a power of two, such as 1 / sqrt(64).
    """

    def __init__(self) -> None:
        super().__init__("query-scale", remove_nodes=False)

    def pattern(self, op: Any, query: Any, key: Any, value: Any) -> Any:
        """Return the pattern to match."""
        return op.MultiHeadAttention(
            query, key, value, _domain=MICROSOFT, _allow_other_inputs=True, _outputs=["attended"]
        )

    def check(self, context: Any, query: ir.Value, attended: ir.Value, **_: Any) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        node = attended.producer()
        assert node is not None
        if not _scaled_cross_attention(node):
            return result.fail("not cross-attention, or its scale is 1", attended)
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            return result.fail("expected an operator without bias input", node.inputs[3])
        return _check_projection(_projected(query), query)

    def rewrite(self, op: Any, query: ir.Value, attended: ir.Value, **_: Any) -> ir.Value:
        """Return the replacement."""
        node, part = attended.producer(), product(_projected(query))
        assert node is not None and part is not None
        scale = _scale(node)
        assert scale is not None
        scaled = op.MatMul(part.x, _scaled(op, part.weight, scale))
        if part.bias is not None:
            scaled = op.Add(scaled, _scaled(op, part.bias, scale))
        reshape = producer(query, "Reshape")
        if reshape is not None:
            scaled = op.Reshape(scaled, reshape.inputs[1], **reshape.attributes)
        result: ir.Value = op.MultiHeadAttention(
            scaled,
            *node.inputs[1:],
            **dict(node.attributes) | {"scale": 1.0},
            _domain=MICROSOFT,
        )
        return result


def _check_projection(value: ir.Value | None, query: ir.Value) -> MatchResult:
    """Fail unless a value is a product by weights into which a factor can be folded."""
    result, part = MatchResult(), product(value)
    if part is None:
        return result.fail("expected a query that is a product by a weight", query)
    for weight in (part.weight, part.bias):
        if weight is not None and (weight.is_graph_input() or weight.dtype != FLOAT):
            return result.fail("expected float32 weights that are not graph inputs", weight)
    return result


def _projected(query: ir.Value) -> ir.Value | None:
    """Return the query before a Reshape, if there is one."""
    reshape = producer(query, "Reshape")
    return query if reshape is None else reshape.inputs[0]


def _scaled(op: Any, weight: ir.Value, scale: float) -> ir.Value:
    """Make a scaled copy of a weight.

    Each attention gets a copy, since others may share the weight and scale it differently.
    """
    assert weight.graph is not None
    name = f"{weight.name}.scaled"
    while name in weight.graph.initializers:
        name += "_"
    numbers = floats(weight) * np.float32(scale)
    return folded_weight(op, name, numbers)


def _scaled_cross_attention(node: ir.Node) -> bool:
    known = node.op_type == "MultiHeadAttention" and node.domain == MICROSOFT
    return known and _scale(node) not in (None, 1)


def _scale(node: ir.Node) -> float | None:
    """Return the scale of a cross-attention, which is recognized by its keys [B, H, S, Dh].

    Returns:
        1 / sqrt(Dh) without the attribute, or if it is 0; None for other attentions
    """
    key = node.inputs[1] if len(node.inputs) > 1 else None
    shape = None if key is None else key.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return None
    return node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(shape[3])


QUERY_SCALE = RulePass("query-scale", lambda: [QueryScale.rule()], _scaled_cross_attention)


FLOAT = ir.DataType.FLOAT


class BilinearScores(RewriteRuleClassBase):
    """Heads of x W_q [B, H, Q, Dh] times W [H, Dh, Dh] -> heads of x (W_q W).

    Sums are in another order, so that rounding differs.
    """

    def __init__(self) -> None:
        super().__init__("bilinear-scores", remove_nodes=False)

    def pattern(self, op: Any, query: Any, split: Any, bilinear: Any) -> Any:
        """Return the pattern to match."""
        return op.MatMul(split_heads(op, query, split, "query_heads"), bilinear, _outputs=["q"])

    def check(
        self, context: Any, query: ir.Value, query_heads: ir.Value, bilinear: ir.Value, **_: Any
    ) -> MatchResult:
        """Check what the pattern cannot express."""
        result, heads = MatchResult(), known_heads(query_heads)
        if not is_weight(bilinear, 3):
            return result.fail("expected a weight [H, Dh, Dh]", bilinear)
        if heads is None or tuple(bilinear.shape or ()) != (heads[0], heads[1], heads[1]):
            return result.fail("expected a matrix for each head of known size", bilinear)
        return _check_projection(query, query)

    def rewrite(
        self, op: Any, query: ir.Value, split: ir.Value, bilinear: ir.Value, **_: Any
    ) -> ir.Value:
        """Return the replacement."""
        part, matrices = product(query), floats(bilinear)
        assert part is not None
        folded = op.MatMul(part.x, _folded(op, part.weight, matrices))
        if part.bias is not None:
            folded = op.Add(folded, _folded(op, part.bias, matrices))
        heads: ir.Value = op.Transpose(op.Reshape(folded, split), perm=[0, 2, 1, 3])
        return heads


def _folded(op: Any, weight: ir.Value, matrices: NDArray[np.float32]) -> ir.Value:
    """Multiply each head of a weight [..., H * Dh] by its matrix."""
    numbers = floats(weight)
    heads = numbers.reshape(*numbers.shape[:-1], *matrices.shape[:2])
    name = f"{weight.name}.bilinear"
    product_of_heads = np.einsum("...hi,hij->...hj", heads, matrices).reshape(numbers.shape)
    return folded_weight(op, name, product_of_heads)


def _by_head(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and is_weight(node.inputs[1], 3)


BILINEAR_SCORES = RulePass("bilinear-scores", lambda: [BilinearScores.rule()], _by_head)
