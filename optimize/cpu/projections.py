"""Projections: packing query, key and value, folding factors into queries, and a tied output.

A packed product of query, key and value reads, and quantizes, its input once.

With a scale of 1 and a single query, ONNX Runtime reads the keys and values of cross-attention in
place; with any other scale it copies them first. Bilinear scores q^T W k are (q W) k, so that each
head's W goes into the weights.

A projection to logits by a tied embedding becomes `com.microsoft.FusedMatMul`, which needs no
transposed copy of the table [V, D].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


class _CachedQueryKeyValue(FusionRule):
    name = "cached-query-key-value"

    def pattern(self, op: Any, query: Any, key: Any, value: Any) -> Any:
        return op.GroupQueryAttention(
            query,
            key,
            value,
            _domain=MICROSOFT,
            _allow_other_inputs=True,
            _outputs=["attended", "present_key", "present_value"],
        )

    def refusal(
        self,
        context: Any,
        query: ir.Value | None,
        key: ir.Value | None,
        value: ir.Value | None,
        **_: Any,
    ) -> str:
        if key is None:
            return "already packed"
        parts = list(map(product, (query, key, value)))
        if None in parts:
            return "expected query, key and value to be products by weights"
        if len({part.x for part in parts if part}) != 1:
            return "expected query, key and value computed from the same input"
        return ""

    def rewrite(self, op: Any, attended: ir.Value, **_: Any) -> Any:
        node = made_by(attended)
        return op.GroupQueryAttention(
            packed(op, node.inputs[:3]),
            None,
            None,
            *node.inputs[3:],
            **dict(node.attributes),
            _domain=MICROSOFT,
            _outputs=3,
        )


def packed(op: Any, values: Sequence[ir.Value | None]) -> ir.Value:
    """Make one product [..., sum of outs] of products of the same input [..., in]."""
    parts = [part for part in map(product, values) if part is not None]
    first = "+".join(part.weight.name or "" for part in parts)
    weights = np.concatenate([floats(part.weight) for part in parts], axis=1)
    result: ir.Value = op.MatMul(parts[0].x, folded_weight(op, f"{first}.packed", weights))
    if any(part.bias is not None for part in parts):
        biases = [
            np.zeros(floats(part.weight).shape[1], weights.dtype)
            if part.bias is None
            else floats(part.bias)
            for part in parts
        ]
        result = op.Add(result, folded_weight(op, f"{first}.packed_bias", np.concatenate(biases)))
    return result


PACKED_PROJECTIONS = RulePass(
    "packed-projections",
    _CachedQueryKeyValue.rules,
    lambda node: node.op_type == "GroupQueryAttention" and node.inputs[1] is not None,
    requires=frozenset({"grouped attention"}),
)


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


class _TiedOutput(FusionRule):
    name = "tied-output"

    def pattern(self, op: Any, x: Any, table: Any) -> Any:
        return op.MatMul(x, op.Transpose(table, perm=[1, 0]))

    def refusal(self, context: Any, table: ir.Value, **_: Any) -> str:
        return "" if is_weight(table, 2) else "expected an initializer [V, D]"

    def rewrite(self, op: Any, x: ir.Value, table: ir.Value) -> Any:
        return op.FusedMatMul(x, table, transB=1, _domain=MICROSOFT)


def _tied(node: ir.Node) -> bool:
    transpose = producer(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
    return transpose is not None and is_weight(transpose.inputs[0], 2)


TIED_OUTPUT = RulePass("tied-output", _TiedOutput.rules, _tied)
