"""Folding factors of attention scores into the weights of the query projection.

With a scale of 1 and a single query, ONNX Runtime reads the keys and values of cross-attention in
place; with any other scale it copies them first. Bilinear scores q^T W k are (q W) k, so that each
head's W goes into the weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..graph_pass import FusionRule, RulePass
from ..graph_values import (
    MICROSOFT,
    floats,
    folded_weight,
    is_weight,
    made_by,
    producer,
    product,
)
from .attention import known_heads, split_heads


class _QueryScale(FusionRule):
    """MultiHeadAttention(x W + b, scale s) -> MultiHeadAttention(x sW + sb, scale 1).

    It is exact if s is a power of two, such as 1 / sqrt(64).
    """

    name = "query-scale"

    def pattern(self, op: Any, query: Any, key: Any, value: Any) -> Any:
        return op.MultiHeadAttention(
            query, key, value, _domain=MICROSOFT, _allow_other_inputs=True, _outputs=["attended"]
        )

    def refusal(self, context: Any, query: ir.Value, attended: ir.Value, **_: Any) -> str:
        node = made_by(attended)
        if not _scaled_cross_attention(node):
            return "not cross-attention, or its scale is 1"
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            return "expected an operator without bias input"
        return _fault_of_projection(_projected(query))

    def rewrite(self, op: Any, query: ir.Value, attended: ir.Value, **_: Any) -> Any:
        node, part = made_by(attended), product(_projected(query))
        scale = _scale(node)
        assert part is not None and scale is not None
        scaled = op.MatMul(part.x, _scaled(op, part.weight, scale))
        if part.bias is not None:
            scaled = op.Add(scaled, _scaled(op, part.bias, scale))
        reshape = producer(query, "Reshape")
        if reshape is not None:
            scaled = op.Reshape(scaled, reshape.inputs[1], **reshape.attributes)
        return op.MultiHeadAttention(
            scaled,
            *node.inputs[1:],
            **dict(node.attributes) | {"scale": 1.0},
            _domain=MICROSOFT,
        )


def _fault_of_projection(value: ir.Value | None) -> str:
    part = product(value)
    if part is None:
        return "expected a query that is a product by a weight"
    for weight in (part.weight, part.bias):
        if weight is not None and (weight.is_graph_input() or weight.dtype != ir.DataType.FLOAT):
            return "expected float32 weights that are not graph inputs"
    return ""


def _projected(query: ir.Value) -> ir.Value | None:
    reshape = producer(query, "Reshape")
    return query if reshape is None else reshape.inputs[0]


def _scaled(op: Any, weight: ir.Value, scale: float) -> ir.Value:
    """Make a scaled copy of a weight, which others may share and scale differently."""
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
    """Return the scale of a cross-attention, known by its keys [B, H, S, Dh]; None for others."""
    key = node.inputs[1] if len(node.inputs) > 1 else None
    shape = None if key is None else key.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return None
    return node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(shape[3])


QUERY_SCALE = RulePass("query-scale", _QueryScale.rules, _scaled_cross_attention)


class _BilinearScores(FusionRule):
    """Heads of x W_q [B, H, Q, Dh] times W [H, Dh, Dh] -> heads of x (W_q W).

    Sums are in another order, so that rounding differs.
    """

    name = "bilinear-scores"

    def pattern(self, op: Any, query: Any, split: Any, bilinear: Any) -> Any:
        return op.MatMul(split_heads(op, query, split, "query_heads"), bilinear, _outputs=["q"])

    def refusal(
        self, context: Any, query: ir.Value, query_heads: ir.Value, bilinear: ir.Value, **_: Any
    ) -> str:
        heads = known_heads(query_heads)
        if not is_weight(bilinear, 3):
            return "expected a weight [H, Dh, Dh]"
        if heads is None or tuple(bilinear.shape or ()) != (heads[0], heads[1], heads[1]):
            return "expected a matrix for each head of known size"
        return _fault_of_projection(query)

    def rewrite(
        self, op: Any, query: ir.Value, split: ir.Value, bilinear: ir.Value, **_: Any
    ) -> Any:
        part, matrices = product(query), floats(bilinear)
        assert part is not None
        folded = op.MatMul(part.x, _folded(op, part.weight, matrices))
        if part.bias is not None:
            folded = op.Add(folded, _folded(op, part.bias, matrices))
        return op.Transpose(op.Reshape(folded, split), perm=[0, 2, 1, 3])


def _folded(op: Any, weight: ir.Value, matrices: NDArray[np.float32]) -> ir.Value:
    numbers = floats(weight)
    heads = numbers.reshape(*numbers.shape[:-1], *matrices.shape[:2])
    name = f"{weight.name}.bilinear"
    product_of_heads = np.einsum("...hi,hij->...hj", heads, matrices).reshape(numbers.shape)
    return folded_weight(op, name, product_of_heads)


BILINEAR_SCORES = RulePass(
    "bilinear-scores",
    _BilinearScores.rules,
    lambda node: node.op_type == "MatMul" and is_weight(node.inputs[1], 3),
)
