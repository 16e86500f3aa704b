"""Moving the scale of cross-attention into the weights of the query projection.

With a scale of 1 and a single query, ONNX Runtime reads keys and values in place; with any other
scale it copies them first. Between projection and attention, a reshape may put the queries of all
rows of a source together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..graph_values import MICROSOFT, floats, producer, product

FLOAT = ir.DataType.FLOAT


class QueryScale(RewriteRuleClassBase):
    """MultiHeadAttention(x W + b, scale s) -> MultiHeadAttention(x sW + sb, scale 1)

    Exact if s is a power of two, such as 1 / sqrt(64).
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
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            return result.fail("expected an operator without bias input", node.inputs[3])
        part = product(_projected(query))
        if part is None:
            return result.fail("expected a query that is a product by a weight", query)
        for weight in (part.weight, part.bias):
            if weight is not None and (weight.is_graph_input() or weight.dtype != FLOAT):
                return result.fail("expected float32 weights that are not graph inputs", weight)
        return result

    def rewrite(self, op: Any, query: ir.Value, attended: ir.Value, **_: Any) -> ir.Value:
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


def _projected(query: ir.Value) -> ir.Value | None:
    """The query before it is reshaped, if it is."""
    reshape = producer(query, "Reshape")
    return query if reshape is None else reshape.inputs[0]


def _scaled(op: Any, weight: ir.Value, scale: float) -> ir.Value:
    """A scaled copy of a weight; each attention gets its own, since others may share the weight and
    scale it differently.
    """
    assert weight.graph is not None
    name = f"{weight.name}.scaled"
    while name in weight.graph.initializers:
        name += "_"
    numbers = floats(weight) * np.float32(scale)
    value: ir.Value = op.initializer(ir.tensor(numbers, name=name), name=name)
    return value


def _scaled_cross_attention(node: ir.Node) -> bool:
    known = node.op_type == "MultiHeadAttention" and node.domain == MICROSOFT
    return known and _scale(node) not in (None, 1)


def _scale(node: ir.Node) -> float | None:
    """The scale of a cross-attention, which is recognized by its keys [B, H, S, Dh]; None for other
    attentions. Without the attribute, or if it is 0, 1 / sqrt(Dh).
    """
    key = node.inputs[1] if len(node.inputs) > 1 else None
    shape = None if key is None else key.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return None
    return node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(shape[3])


QUERY_SCALE = RulePass("query-scale", lambda: [QueryScale.rule()], _scaled_cross_attention)
