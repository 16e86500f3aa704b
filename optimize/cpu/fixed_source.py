"""Cross-attention over a source of fixed length, such as a window of audio.

ONNX Runtime's MultiHeadAttention copies keys and values into another layout if a source has several
queries, as in beam search. Over a long source, one product for each row takes 0.59 to 0.72 times as
long: it reads the keys in place, and later rows find them in the processor's cache.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph_pass import FusionRule, RulePass
from ..graph_values import MICROSOFT, made_by, new_weight, producer

PADDING_BIAS = -10000.0
"""The operator's default of `mask_filter_value`."""


class _FixedSource(FusionRule):
    """MultiHeadAttention of the queries of G sources -> products of B rows.

    Queries [B, Q, H * Dh] are read as [G, B / G, Q, H, Dh]. Keys and values are [G, H, S, Dh] with
    a constant S. The scale is 1, see `projections`.
    """

    name = "fixed-source-attention"

    def pattern(self, op: Any, query: Any, by_source: Any, key: Any, value: Any) -> Any:
        return op.MultiHeadAttention(
            op.Reshape(query, by_source),
            key,
            value,
            _domain=MICROSOFT,
            _allow_other_inputs=True,
            _outputs=["attended"],
        )

    def refusal(
        self, context: Any, query: ir.Value, by_source: ir.Value, attended: ir.Value, **_: Any
    ) -> str:
        node = made_by(attended)
        if not _reads_a_fixed_source(node):
            return "expected keys [G, H, S, Dh] with a constant S"
        if any(value is None or value.dtype != ir.DataType.FLOAT for value in node.inputs[1:3]):
            return "expected float32 keys and values"
        if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
            return "expected no use of other outputs"
        if unknown := sorted(set(node.attributes) - {"num_heads", "scale", "mask_filter_value"}):
            return f"expected no attributes but heads, scale and value of padding, found {unknown}"
        if node.attributes.get_float("scale", 0.0) != 1:
            return "expected a scale of 1"
        mask = _mask(node)
        if len(node.inputs) != 5 or node.inputs[3] is not None or mask is None:
            return "expected a bool mask [G, S] of padding and no other inputs"
        if not _groups(by_source) or (query.shape is not None and len(query.shape) != 3):
            return "expected queries [B, Q, H * Dh] that are grouped by source"
        return ""

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        attended: ir.Value,
        **_: Any,
    ) -> Any:
        node, graph, shape = made_by(attended), query.graph, key.shape
        assert isinstance(graph, ir.Graph) and shape is not None
        heads, size = shape[1], shape[3]
        constant = functools.partial(new_weight, graph)
        sources = op.Shape(key, start=0, end=1)
        rows = op.Concat(
            sources,
            constant("rows_of_source", np.array([-1])),
            op.Shape(query, start=1, end=2),
            constant(f"heads_{heads}_{size}", np.array([heads, size])),
            axis=0,
        )
        queries = op.Transpose(op.Reshape(query, rows), perm=[0, 3, 1, 2, 4])
        of_rows = constant("axis_of_rows", np.array([2]))
        scores = op.FusedMatMul(queries, op.Unsqueeze(key, of_rows), transB=1, _domain=MICROSOFT)
        padding = node.attributes.get_float("mask_filter_value", PADDING_BIAS)
        bias = op.Where(
            _mask(node),
            constant("bias_of_source", np.array(0, np.float32)),
            constant(f"bias_of_padding_{padding:.9g}", np.array(padding, np.float32)),
        )
        bias = op.Unsqueeze(bias, constant("axes_of_queries", np.array([1, 2, 3])))
        weights = op.Softmax(op.Add(scores, bias), axis=-1)
        of_heads = op.MatMul(weights, op.Unsqueeze(value, of_rows))
        width = heads * size
        together = op.Concat(sources, constant(f"by_source_{width}", np.array([-1, width])), axis=0)
        return op.Reshape(op.Transpose(of_heads, perm=[0, 2, 3, 1, 4]), together)


def _groups(shape: ir.Value) -> bool:
    """Return whether a shape is of sources and their queries, see `attention`."""
    grouped = producer(shape, "Concat")
    sources = None if grouped is None else producer(grouped.inputs[0], "Shape")
    if sources is None:
        return False
    return (sources.attributes.get_int("start", 0), sources.attributes.get_int("end", 0)) == (0, 1)


def _mask(node: ir.Node) -> ir.Value | None:
    """Return the bool mask [G, S] of a MultiHeadAttention; None if it has another one."""
    cast = producer(node.inputs[4], "Cast") if len(node.inputs) > 4 else None
    mask = None if cast is None else cast.inputs[0]
    if mask is None or mask.dtype != ir.DataType.BOOL or mask.shape is None:
        return None
    return mask if len(mask.shape) == 2 else None


def _reads_a_fixed_source(node: ir.Node) -> bool:
    if (node.op_type, node.domain) != ("MultiHeadAttention", MICROSOFT) or len(node.inputs) < 3:
        return False
    shape = None if node.inputs[1] is None else node.inputs[1].shape
    return shape is not None and len(shape) == 4 and all(isinstance(n, int) for n in shape[1:])


FIXED_SOURCE = RulePass("fixed-source-attention", _FixedSource.rules, _reads_a_fixed_source)
