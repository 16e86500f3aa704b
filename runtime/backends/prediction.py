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
    """A prediction from logits [B, V] and the token that the graph selected.

    The graph never selects tokens that are `suppressed`.

    Args:
        logits: writable; changed while candidates are found
    """

    def __init__(
        self, logits: NDArray[np.float32], choice: StepOutput, suppressed: Sequence[int]
    ) -> None:
        self.logits, self.choice, self._suppressed = logits, choice, sorted(set(suppressed))

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
        """Return the `count` most probable unsuppressed tokens of each row.

        Where fewer have a finite logit, others follow with log-probability -inf.
        """
        logits, normalizers = self.logits, self.normalizers[:, None]
        held = logits[:, self._suppressed]
        count = min(count, logits.shape[1] - held.shape[1])
        try:  # to find more tokens and drop some would take longer
            logits[:, self._suppressed] = -np.inf
            tokens = best_tokens(logits, count)
            chosen = np.take_along_axis(logits, tokens, 1)
        finally:
            logits[:, self._suppressed] = held
        return Candidates(tokens, chosen - normalizers)


class ShortlistPrediction:
    """A prediction from the logits of the tokens that each row allows; others have probability 0.

    Args:
        scores: logits [B, A] of the allowed tokens, -inf at padding
        tokens: int64 [B, A], negative at padding
    """

    def __init__(
        self,
        scores: NDArray[np.float32],
        tokens: NDArray[np.int64],
        choice: StepOutput,
        suppressed: Sequence[int],
        vocabulary: int,
    ) -> None:
        self._scores, self._tokens, self.choice = scores, tokens, choice
        self._suppressed, self._vocabulary = suppressed, vocabulary

    @cached_property
    def logits(self) -> NDArray[np.float32]:
        """The logits [B, V]; -inf for tokens that a row does not allow."""
        rows = len(self._scores)
        wide = np.full((rows, self._vocabulary + 1), -np.inf, np.float32)
        np.put_along_axis(wide, self._tokens, self._scores, 1)  # the last column takes padding
        return wide[:, :-1]

    @cached_property
    def normalizers(self) -> NDArray[np.float32]:
        """The logarithm of the sum of exp(logits) over all allowed tokens, [B]."""
        places = (self.choice.tokens[:, None] == self._tokens).argmax(axis=1)[:, None]
        chosen = np.take_along_axis(self._scores, places, 1)[:, 0]
        allowed: NDArray[np.float32] = chosen - self.choice.log_probabilities
        if not self._suppressed:
            return allowed
        excluded = np.where(self._are_suppressed, self._scores, -np.inf)
        total: NDArray[np.float32] = np.logaddexp(allowed, np.logaddexp.reduce(excluded, axis=1))
        return total

    def candidates(self, count: int) -> Candidates:
        """Return the `count` most probable unsuppressed tokens of each row.

        If a row allows fewer, token 0 with log-probability -inf takes their place.
        """
        scores = self._scores
        if self._suppressed:
            scores = np.where(self._are_suppressed, np.float32(-np.inf), scores)
        if count > scores.shape[1]:
            scores = np.pad(scores, ((0, 0), (0, count - scores.shape[1])), constant_values=-np.inf)
        places = _best_places(scores, min(count, self._vocabulary))
        found = np.take_along_axis(scores, places, 1)
        tokens = np.take_along_axis(self._tokens, np.minimum(places, self._tokens.shape[1] - 1), 1)
        possible = found > -np.inf
        return Candidates(np.where(possible, tokens, 0), found - self.normalizers[:, None])

    @cached_property
    def _are_suppressed(self) -> NDArray[np.bool_]:
        return np.isin(self._tokens, list(self._suppressed))


def _best_places(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the places of the `count` largest scores of each row, of equal ones the first.

    Unlike those of `best_tokens`, they do not depend on how many scores of -inf follow.
    """
    bits = scores.view(np.int32)
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    keys = (ordered << 32) - np.arange(scores.shape[1])
    best = np.argpartition(-keys, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(keys, best, 1), axis=1)
    places: NDArray[np.int64] = np.take_along_axis(best, order, 1).astype(np.int64)
    return places


def best_tokens(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` largest of scores [B, V], largest first: int64 [B, count].

    Only blocks of the vocabulary whose maxima are among the `count` largest can hold one of the
    `count` largest scores. So one vectorized pass suffices, and few scores are sorted.
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
    if count < scores.shape[1]:
        part = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        scores = np.take_along_axis(scores, part, 1)
        indices = np.take_along_axis(indices, part, 1)
    order = np.lexsort((indices, -scores), axis=1)
    best: NDArray[np.int64] = np.take_along_axis(indices, order, 1).astype(np.int64, copy=False)
    return best
