"""The prediction of a step from logits on the host. See `interface.Prediction`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .interface import Candidates, StepOutput

BLOCKS_PER_CANDIDATE = 8
"""Minimum number of blocks for each candidate; with fewer, no block could be skipped."""


class HostPrediction:
    """A prediction from logits and the token that the graph selected.

    The log-probability of that token gives the normalizer without another sum over the vocabulary.

    Args:
        logits: [B, V]
        suppressed: tokens that the graph never selects
    """

    def __init__(
        self, logits: NDArray[np.float32], choice: StepOutput, suppressed: Sequence[int]
    ) -> None:
        self.logits, self.choice, self._suppressed = logits, choice, list(suppressed)

    @cached_property
    def normalizers(self) -> NDArray[np.float32]:
        """The logarithm of the sum of exp(logits) over all tokens, [B]."""
        chosen = np.take_along_axis(self.logits, self.choice.tokens[:, None], 1)[:, 0]
        allowed = chosen - self.choice.log_probabilities
        if not self._suppressed:
            return allowed
        excluded = np.logaddexp.reduce(self.logits[:, self._suppressed], axis=1)
        total: NDArray[np.float32] = np.logaddexp(allowed, excluded)
        return total

    def candidates(self, count: int) -> Candidates:
        """Return the `count` most probable unsuppressed tokens of each row."""
        more = min(count + len(self._suppressed), self.logits.shape[1])
        tokens = best_tokens(self.logits, more)
        chosen = np.take_along_axis(self.logits, tokens, 1)
        found = Candidates(tokens, chosen - self.normalizers[:, None])
        return _drop_suppressed(found, self._suppressed, count)


def _drop_suppressed(candidates: Candidates, suppressed: Sequence[int], count: int) -> Candidates:
    """Return the first `count` candidates that are not suppressed.

    Args:
        candidates: best tokens of each row, best first: `count` plus the number of suppressed
            tokens, or all tokens
    """
    if not suppressed:
        return candidates
    tokens, log_probabilities = candidates
    left_out = np.isin(tokens, suppressed)
    least = tokens.shape[1] - int(left_out.sum(axis=1).max(initial=0))
    order = np.argsort(left_out, axis=1, kind="stable")[:, : min(count, least)]
    return Candidates(
        np.take_along_axis(tokens, order, 1), np.take_along_axis(log_probabilities, order, 1)
    )


def best_tokens(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` largest scores of each row, largest first.

    The choice among scores that tie for last place is undefined.

    The vocabulary is divided into blocks. Only blocks whose maxima are among the `count` largest
    can hold one of the `count` largest scores. One vectorized pass over the scores therefore
    suffices, and few scores are sorted.

    Args:
        scores: [B, V]; V at least `count`

    Returns:
        int64 [B, count]
    """
    rows, vocabulary = scores.shape
    depth = max(1, int(np.sqrt(vocabulary / count)))
    blocks = vocabulary // depth
    if blocks < BLOCKS_PER_CANDIDATE * count:
        within = np.broadcast_to(np.arange(vocabulary), scores.shape)
        return _sorted(scores, within, count)
    whole = blocks * depth
    # Block b holds the tokens b, b + blocks, b + 2 * blocks, ..., so that adjacent tokens are in
    # different blocks and the maxima of all blocks are vectorized.
    dealt = scores[:, :whole].reshape(rows, depth, blocks)
    largest = dealt.max(axis=1)
    chosen = np.argpartition(largest, blocks - count, axis=1)[:, blocks - count :]
    within = chosen[:, None, :] + blocks * np.arange(depth)[None, :, None]
    indices = within.reshape(rows, -1)
    if whole < vocabulary:
        rest = np.broadcast_to(np.arange(whole, vocabulary), (rows, vocabulary - whole))
        indices = np.concatenate([indices, rest], axis=1)
    return _sorted(np.take_along_axis(scores, indices, 1), indices, count)


def _sorted(
    scores: NDArray[np.float32], indices: NDArray[np.intp], count: int
) -> NDArray[np.int64]:
    """Return the indices of the `count` largest scores of each row, largest first."""
    if count < scores.shape[1]:
        part = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        scores = np.take_along_axis(scores, part, 1)
        indices = np.take_along_axis(indices, part, 1)
    order = np.lexsort((indices, -scores), axis=1)
    best: NDArray[np.int64] = np.take_along_axis(indices, order, 1).astype(np.int64, copy=False)
    return best
