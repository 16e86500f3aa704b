"""Packing query, key and value projections into one product; and logits from a tied embedding.

A packed product reads, and quantizes, its input once. A projection by a tied embedding becomes
`com.microsoft.FusedMatMul`, which needs no transposed copy of the table [V, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

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
