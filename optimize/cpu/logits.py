"""The end of the decoder: the projection to logits, and the greedy selection from them.

Greedy selection needs few passes over the logits. ONNX Runtime's ArgMax is scalar and
single-threaded; its ReduceMax is vectorized. The maximum of each block is computed first, then the
first block with the largest maximum, then the first index of the maximum in this block. Where the
vocabulary has no suitable divisor, -inf follows the logits. Of equal values the first is selected,
as by ArgMax (opset 13). The last query is selected from the tokens rather than from the logits,
which would be copied.

A projection by a tied embedding becomes `com.microsoft.FusedMatMul`, which transposes the table.
Embeddings are still looked up in the same table [V, D], and there is no transposed copy in memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass
from ..graph_values import MICROSOFT, is_weight, number, producer

SMALLEST_VOCABULARY = 2048
"""The vocabulary below which the time of ArgMax is negligible."""


class GreedyChoice(RewriteRuleClassBase):
    """Logits [B, Q, V] -> for the last query: argmax int64 [B], maximum log-probability [B]."""

    def __init__(self) -> None:
        super().__init__("greedy-choice", remove_nodes=False)

    def pattern(self, op: Any, logits: Any, index: Any) -> Any:
        """Return the pattern to match."""
        last = op.Gather(logits, index, axis=1, _outputs=["last"])
        choice = op.ArgMax(last, _outputs=["choice"])
        probabilities = op.LogSoftmax(last, axis=-1)
        return choice, op.ReduceMax(probabilities, _allow_other_inputs=True, _outputs=["largest"])

    def check(
        self,
        context: Any,
        logits: ir.Value,
        index: ir.Value,
        choice: ir.Value,
        largest: ir.Value,
        **_: Any,
    ) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        node, maximum = choice.producer(), largest.producer()
        assert node is not None and maximum is not None
        if number(index) != -1 or (index.shape is not None and len(index.shape) != 0):
            return result.fail("expected the choice for the last query", index)
        shape = logits.shape
        if (
            logits.dtype is None
            or shape is None
            or len(shape) != 3
            or not isinstance(shape[2], int)
        ):
            return result.fail(f"expected logits [B, Q, V], found {shape}", logits)
        for reduction in (node, maximum):
            if reduction.attributes.get_int("keepdims", 1) != 0:
                return result.fail("expected keepdims 0", reduction)
        if node.attributes.get_int("select_last_index", 0) != 0:
            return result.fail("expected the first of equal values, found the last", node)
        axis = number(maximum.inputs[1]) if len(maximum.inputs) == 2 else None
        if node.attributes.get_int("axis", 0) not in (-1, 1) or axis not in (-1, 1):
            return result.fail("expected reductions over the last axis", node)
        if shape[2] < SMALLEST_VOCABULARY:
            return result.fail(f"the vocabulary of {shape[2]} is small", node)
        return result

    def rewrite(self, op: Any, logits: ir.Value, index: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        assert logits.shape is not None
        vocabulary = logits.shape[2]
        assert isinstance(vocabulary, int)
        size, added = blocks_of(vocabulary)

        def numbers(*values: int) -> ir.Value:
            value: ir.Value = op.Constant(value=ir.tensor(np.array(values, np.int64)))
            return value

        padded = logits
        if added:
            assert logits.dtype is not None
            lowest = op.Constant(value=ir.tensor(np.array(-np.inf, logits.dtype.numpy())))
            padded = op.Pad(logits, numbers(0, 0, 0, 0, 0, added), lowest)
        blocks = op.Reshape(padded, numbers(0, 0, (vocabulary + added) // size, size))
        largest = op.ReduceMax(blocks, numbers(3), keepdims=0)
        block = op.ArgMax(largest, axis=2, keepdims=1)
        chosen = op.GatherND(blocks, block, batch_dims=2)
        within = op.ArgMax(chosen, axis=2, keepdims=1)
        choice = op.Add(op.Mul(block, numbers(size)), within)
        probability = op.GatherND(op.LogSoftmax(logits, axis=-1), choice, batch_dims=2)
        last_choice = op.Gather(op.Squeeze(choice, numbers(2)), index, axis=1)
        return last_choice, op.Gather(probability, index, axis=1)


def blocks_of(vocabulary: int) -> tuple[int, int]:
    """Return the size of the blocks of a vocabulary, and the number of values to add to it.

    The time grows with the larger of the two, the size and the number of blocks. Adding values
    copies the logits, which takes as long as if they were a fifth as many.
    """
    divisors = (d for d in range(1, math.isqrt(vocabulary) + 1) if vocabulary % d == 0)
    size = vocabulary // max(divisors)
    if size <= vocabulary // 5:
        return size, 0
    size = math.isqrt(vocabulary)
    return size, -vocabulary % size


def _normalized(node: ir.Node) -> bool:
    return node.op_type == "ReduceMax" and producer(node.inputs[0], "LogSoftmax") is not None


GREEDY_CHOICE = RulePass("greedy-choice", lambda: [GreedyChoice.rule()], _normalized)


class TiedOutput(RewriteRuleClassBase):
    """x [B, Q, D] @ Transpose(table [V, D]) -> FusedMatMul(x, table) [B, Q, V]."""

    def __init__(self) -> None:
        super().__init__("tied-output", remove_nodes=False)

    def pattern(self, op: Any, x: Any, table: Any) -> Any:
        """Return the pattern to match."""
        return op.MatMul(x, op.Transpose(table, perm=[1, 0]))

    def check(self, context: Any, table: ir.Value, **_: Any) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        if not is_weight(table, 2):
            return result.fail("expected an initializer [V, D]", table)
        return result

    def rewrite(self, op: Any, x: ir.Value, table: ir.Value, **_: Any) -> ir.Value:
        """Return the replacement."""
        product: ir.Value = op.FusedMatMul(x, table, transB=1, _domain=MICROSOFT)
        return product


def _tied(node: ir.Node) -> bool:
    transpose = producer(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
    return transpose is not None and is_weight(transpose.inputs[0], 2)


TIED_OUTPUT = RulePass("tied-output", lambda: [TiedOutput.rule()], _tied)
