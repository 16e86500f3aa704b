"""Fusing decomposed attention to Attention (ONNX, opset 23), and expanding its masks.

Self-attention, cached or not, and cross-attention are fused. A query whose keys are all masked gets
what the decomposed form gave it, see `attention_masks`.

ONNX allows a mask with one row for all queries (Attention, opset 23). ONNX Runtime's CPU kernel
does not, so that the row is expanded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern

from ..graph_pass import Changes, FusionRule, GraphPass, RulePass
from ..graph_values import (
    UnsupportedPatternError,
    describe,
    is_number,
    made_by,
    new_weight,
    rank,
)
from .attention_masks import check_type, total_mask
from .attention_scores import Scores, find_scores


class _ExpandMasks(GraphPass):
    """Expands masks [..., 1, K] to [..., Q, K], unless there is known to be one query."""

    name = "attention-mask"
    requires = frozenset({"opset 23"})

    def apply(self, model: ir.Model) -> Changes:
        graph = model.graph
        matches = 0
        for node in list(graph):
            if node.op_type != "Attention" or node.domain or not _one_row(node):
                continue
            query, mask = node.inputs[0], node.inputs[3]
            assert query is not None and mask is not None
            axis = 2 if rank(query) == 4 else 1
            shape = ir.node("Shape", [query], {"start": axis, "end": axis + 1})
            one = new_weight(graph, "as_it_is", np.array([1]))
            whole = ir.node("Concat", [shape.outputs[0], one], {"axis": 0})
            wide = ir.node("Expand", [mask, whole.outputs[0]])
            wide.outputs[0].type = mask.type
            graph.insert_before(node, [shape, whole, wide])
            node.replace_input_with(3, wide.outputs[0])
            matches += 1
        return Changes(matches)


def _one_row(node: ir.Node) -> bool:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    query = node.inputs[0]
    if mask is None or query is None or mask.shape is None or query.shape is None:
        return False
    queries = query.shape[2 if rank(query) == 4 else 1]
    return len(mask.shape) >= 2 and mask.shape[-2] == 1 and queries != 1


EXPAND_MASKS = _ExpandMasks()


class _FuseAttention(FusionRule):
    name = "attention"

    def setup(self) -> None:
        """Forget the masks of the previous graph."""
        self.expanded: dict[tuple[Any, ...], Any] = {}

    def pattern(self, op: Any, scores: Any, value: Any, zero: Any) -> Any:
        softmax = op.Softmax(scores, _outputs=["softmax"])
        guarded = op.Where(op.IsNaN(softmax), zero, softmax)
        weights = pattern.OrValue([guarded, op.Cast(softmax), softmax])
        return op.MatMul(weights, value)

    def refusal(
        self,
        context: Any,
        scores: ir.Value,
        value: ir.Value,
        softmax: ir.Value,
        zero: ir.Value | None = None,
        **_: Any,
    ) -> str:
        if zero is not None and not is_number(zero, 0):
            return f"expected NaN to become 0, found {describe(zero)}"
        _check_only_use(context, softmax)
        self.scores = find_scores(scores)
        check_type(self.scores.masks, zeros=zero is not None)
        axis = made_by(softmax).attributes.get_int("axis", -1)
        if axis not in (-1, self.scores.rank - 1):
            return f"expected a Softmax over the last axis, found axis {axis}"
        _check_operands(self.scores, value)
        return ""

    def rewrite(
        self, op: Any, value: ir.Value, softmax: ir.Value, zero: ir.Value | None = None, **_: Any
    ) -> Any:
        scores = self.scores
        key = op.Transpose(scores.key, perm=scores.key_order) if scores.key_order else scores.key
        attributes: dict[str, Any] = {"scale": scores.scale}
        if scores.rank == 3:
            attributes |= {"q_num_heads": 1, "kv_num_heads": 1}
        if softmax.dtype is not None and softmax.dtype != value.dtype:
            attributes["softmax_precision"] = int(softmax.dtype)
        mask = self._mask(op, softmax.graph, zeros=zero is not None)
        inputs = [scores.query, key, value, *[mask] * (mask is not None)]
        return op.Attention(*inputs, **attributes)

    def _mask(self, op: Any, graph: Any, *, zeros: bool) -> Any:
        """Expand the masks' sum in the two axes that ONNX Runtime's kernel does not broadcast."""
        scores = self.scores
        if not scores.masks:
            return None
        query_size, key_size = _axis(scores.query, -2), _axis(scores.key, scores.key_axis)
        names = tuple(map(repr, (query_size, key_size)))
        known = all(
            isinstance(d, int) or (d is not None and d.value) for d in (query_size, key_size)
        )
        memo = (graph, *[m.identity() for m in scores.masks], scores.rank, zeros, *names)
        if known and memo in self.expanded:
            return self.expanded[memo]
        total = total_mask(op, scores.masks, zeros=zeros)
        if scores.rank == 3 and any(rank(m.value) == 3 for m in scores.masks):
            total = op.Unsqueeze(total, op.Constant(value_ints=[1]))
        sizes = {(_axis(m.value, -2), _axis(m.value, -1)) for m in scores.masks}
        if not known or (query_size, key_size) not in sizes:
            shape = op.Concat(
                op.Shape(scores.query, start=scores.rank - 2, end=scores.rank - 1),
                op.Shape(scores.key, start=scores.key_axis, end=scores.key_axis + 1),
                axis=0,
            )
            total = op.Expand(total, shape)
        if known:
            self.expanded[memo] = total
        return total


def _axis(value: ir.Value, axis: int) -> int | ir.SymbolicDim | None:
    shape = value.shape
    if shape is None or len(shape) < (-axis if axis < 0 else axis + 1):
        return None
    return shape[axis]


def _check_only_use(context: Any, softmax: ir.Value) -> None:
    """Refuse weights with other readers: they would have to be computed twice."""
    inside = set(context.nodes)
    for node in inside - {context.root}:
        for value in node.outputs:
            if value.is_graph_output():
                raise UnsupportedPatternError(
                    f"the attention weights are an output of the graph, {value.name}"
                )
            for user, _ in value.uses():
                if user not in inside:
                    raise UnsupportedPatternError(
                        f"expected the attention weights to be read by one MatMul only, found "
                        f"{user.op_type} {user.name or ''} reading them too"
                    )


def _check_operands(scores: Scores, value: ir.Value) -> None:
    if rank(value) != scores.rank:
        raise UnsupportedPatternError(
            f"expected values of {scores.rank} axes, found {describe(value)}"
        )
    # MatMul broadcasts batch and heads, Attention does not.
    for operand, what in ((scores.key, "keys"), (value, "values")):
        for axis in range(scores.rank - 2):
            query_size = _axis(scores.query, axis)
            operand_axis = scores.key_order[axis] if what == "keys" and scores.key_order else axis
            size = _axis(operand, operand_axis)
            sizes = query_size, size
            differ = query_size != size
            if differ and (1 in sizes or all(isinstance(each, int) for each in sizes)):
                raise UnsupportedPatternError(
                    f"expected {what} with the queries' batch and heads, {scores.query.shape}; "
                    f"found {describe(operand)}"
                )


ATTENTION = RulePass(
    "attention",
    _FuseAttention.rules,
    lambda node: node.op_type == "Softmax",
    requires=frozenset({"opset 23"}),
    ensures=frozenset({"fused attention"}),
    # ONNX Runtime multiplies queries and keys by the square root of the scale each.
    tolerance=1e-5,
)
