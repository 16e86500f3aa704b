"""Attention that an exporter spelled out: self, masked with past, and cross attention alike.

To Attention (ONNX, opset 23). A query that may look nowhere gets zeros, as that operator says; what
was spelled out gave zeros, NaN or an average, by how its mask was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRule, RewriteRuleClassBase, pattern

from ..graph_pass import RulePass
from .attention_scores import Scores, find_scores
from .values import UnknownFormError, describe, is_number, rank, rule_of


class FuseAttention(RewriteRuleClassBase):
    """softmax(scores) times values."""

    def __init__(self) -> None:
        super().__init__("attention", remove_nodes=False)
        self.expanded: dict[tuple[Any, ...], Any] = {}

    def setup(self) -> None:
        self.expanded = {}

    def pattern(self, op: Any, scores: Any, value: Any, zero: Any) -> Any:
        softmax = op.Softmax(scores, _outputs=["softmax"])
        guarded = op.Where(op.IsNaN(softmax), zero, softmax)
        weights = pattern.OrValue([guarded, op.Cast(softmax), softmax])
        return op.MatMul(weights, value)

    def check(
        self,
        context: Any,
        scores: ir.Value,
        value: ir.Value,
        softmax: ir.Value,
        zero: ir.Value | None = None,
        **_: Any,
    ) -> MatchResult:
        result = MatchResult()
        try:
            if zero is not None and not is_number(zero, 0):
                raise UnknownFormError(f"expected NaN to become 0, found {describe(zero)}")
            _check_only_use(context, softmax)
            self.found = find_scores(scores)
            _check_axis(softmax, self.found)
            _check_operands(self.found, value)
        except UnknownFormError as error:
            return result.fail(str(error), softmax)
        return result

    def rewrite(self, op: Any, value: ir.Value, softmax: ir.Value, **_: Any) -> Any:
        found = self.found
        key = op.Transpose(found.key, perm=found.key_order) if found.key_order else found.key
        attributes: dict[str, Any] = {"scale": found.scale}
        if found.rank == 3:
            attributes |= {"q_num_heads": 1, "kv_num_heads": 1}
        if softmax.dtype is not None and softmax.dtype != value.dtype:
            attributes["softmax_precision"] = int(softmax.dtype)
        mask = self._mask(op, softmax.graph)
        inputs = [found.query, key, value, *[mask] * (mask is not None)]
        return op.Attention(*inputs, **attributes)

    def _mask(self, op: Any, graph: Any) -> Any:
        """The sum of the masks, as large as the scores in its last two axes: ONNX Runtime on the
        CPU broadcasts the others only."""
        found = self.found
        if not found.masks:
            return None
        query_size, key_size = _axis(found.query, -2), _axis(found.key, found.key_axis)
        names = tuple(map(repr, (query_size, key_size)))
        known = all(
            isinstance(d, int) or (d is not None and d.value) for d in (query_size, key_size)
        )
        memo = (graph, *[m.identity() for m in found.masks], found.rank, *names)
        if known and memo in self.expanded:
            return self.expanded[memo]
        parts = [m.build(op) for m in found.masks]
        total = parts[0]
        for part in parts[1:]:
            total = op.Add(total, part)
        if found.rank == 3 and any(rank(m.value) == 3 for m in found.masks):
            total = op.Unsqueeze(total, op.Constant(value_ints=[1]))
        sizes = {(_axis(m.value, -2), _axis(m.value, -1)) for m in found.masks}
        if not known or (query_size, key_size) not in sizes:
            shape = op.Concat(
                op.Shape(found.query, start=found.rank - 2, end=found.rank - 1),
                op.Shape(found.key, start=found.key_axis, end=found.key_axis + 1),
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
    """Weights that something else reads would be computed twice."""
    inside = set(context.nodes)
    for node in inside - {context.root}:
        for value in node.outputs:
            if value.is_graph_output():
                raise UnknownFormError(f"the attention weights are an output, {value.name}")
            for user, _ in value.uses():
                if user not in inside:
                    raise UnknownFormError(
                        f"expected the attention weights to be read by one MatMul, found "
                        f"{user.op_type} {user.name or ''} too"
                    )


def _check_axis(softmax: ir.Value, found: Scores) -> None:
    node = softmax.producer()
    axis = node.attributes.get_int("axis", -1) if node is not None else -1
    if axis not in (-1, found.rank - 1):
        raise UnknownFormError(f"expected a Softmax over the last axis, found axis {axis}")


def _check_operands(found: Scores, value: ir.Value) -> None:
    if rank(value) != found.rank:
        raise UnknownFormError(f"expected values of {found.rank} axes, found {describe(value)}")
    # MatMul broadcasts batch and heads where Attention does not.
    for operand, what in ((found.key, "keys"), (value, "values")):
        for axis in range(found.rank - 2):
            one = _axis(found.query, axis)
            at = found.key_order[axis] if what == "keys" and found.key_order else axis
            other = _axis(operand, at)
            if one != other and (one == 1 or other == 1 or _both_known(one, other)):
                raise UnknownFormError(
                    f"expected {what} with the queries' batch and heads, {found.query.shape}; "
                    f"found {describe(operand)}"
                )


def _both_known(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int)


def _rules() -> Sequence[RewriteRule]:
    return [rule_of(FuseAttention)]


ATTENTION = RulePass(
    "attention",
    _rules,
    lambda node: node.op_type == "Softmax",
    requires=frozenset({"opset 23"}),
    ensures=frozenset({"fused attention"}),
    # ONNX Runtime puts the root of the scale on either side.
    tolerance=1e-5,
)
