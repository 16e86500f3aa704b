"""The greedy choice among a large vocabulary, in two small steps.

ONNX Runtime's ArgMax reads one number at a time, on one thread; its ReduceMax is vectorized. The
largest number of each block is found first, then the first block that has the largest, then the
first place in that block: the first of equals, as ArgMax (opset 13) gives it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..graph_pass import RulePass

SMALLEST_VOCABULARY = 2048
"""Below it ArgMax takes no time to speak of."""


class GreedyChoice(RewriteRuleClassBase):
    """Logits [B, V] -> argmax int64 [B] and the largest log-probability [B]."""

    def __init__(self) -> None:
        super().__init__("greedy-choice", remove_nodes=False)

    def pattern(self, op: Any, logits: Any) -> Any:
        return op.ArgMax(logits, _outputs=["choice"])

    def check(self, context: Any, logits: ir.Value, choice: ir.Value, **_: Any) -> MatchResult:
        result = MatchResult()
        node = choice.producer()
        assert node is not None
        if node.attributes.get_int("keepdims", 1) != 0:
            return result.fail("expected keepdims 0", node)
        if node.attributes.get_int("select_last_index", 0) != 0:
            return result.fail("expected the first of equals, found the last", node)
        shape = logits.shape
        if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
            return result.fail(f"expected logits [B, V], found {shape}", logits)
        if node.attributes.get_int("axis", 0) not in (-1, 1):
            return result.fail("expected the choice among the last axis", node)
        if shape[1] < SMALLEST_VOCABULARY or block_size(shape[1]) == 1:
            return result.fail(f"the vocabulary of {shape[1]} is small, or cannot be divided", node)
        return result

    def rewrite(self, op: Any, logits: ir.Value, **_: Any) -> Any:
        assert logits.shape is not None
        vocabulary = logits.shape[1]
        assert isinstance(vocabulary, int)
        size = block_size(vocabulary)

        def numbers(values: list[int]) -> ir.Value:
            value: ir.Value = op.Constant(value=ir.tensor(np.array(values, np.int64)))
            return value

        blocks = op.Reshape(logits, numbers([0, vocabulary // size, size]))
        largest = op.ReduceMax(blocks, numbers([2]), keepdims=0)
        block = op.ArgMax(largest, axis=1, keepdims=1)
        chosen = op.GatherND(blocks, block, batch_dims=1)
        within = op.ArgMax(chosen, axis=1, keepdims=0)
        before = op.Mul(op.Squeeze(block, numbers([1])), numbers([size]))
        return op.Add(before, within)


def block_size(vocabulary: int) -> int:
    """The divisor nearest to the square root, where there is one between 16 and 4096; else 1."""
    divisors = [d for d in range(16, 4097) if vocabulary % d == 0]
    return min(divisors, key=lambda d: abs(d - math.isqrt(vocabulary)), default=1)


GREEDY_CHOICE = RulePass("greedy-choice", lambda: [GreedyChoice.rule()])
