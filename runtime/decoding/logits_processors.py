"""Choosing tokens from logits on the host, where the graph's own choice does not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Step
from ..format.generation_settings import GenerationSettings


class LogitsProcessor(Protocol):
    """Changes the logits of a step before a token is chosen."""

    def active(self, count: int) -> bool:
        """Whether it can change the choice of the count-th new token (the first is 1)."""

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        """Change logits [B, V] in place.

        Args:
            tokens: the decoder's input of each row so far, the start token first
        """


class MinNewTokens:
    """The end token is not among the first `count` new tokens."""

    def __init__(self, count: int, end_token_id: int) -> None:
        self._count, self._end = count, end_token_id

    def active(self, count: int) -> bool:
        return count <= self._count

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        logits[:, self._end] = -np.inf


class SuppressTokensAt:
    """Some tokens are not chosen as the count-th new token."""

    def __init__(self, count: int, token_ids: Sequence[int]) -> None:
        self._count, self._ids = count, list(token_ids)

    def active(self, count: int) -> bool:
        return count == self._count and bool(self._ids)

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        logits[:, self._ids] = -np.inf


class RepetitionPenalty:
    """Positive logits of tokens that occurred are divided by the penalty, negative ones multiplied
    (Keskar et al. 2019, section 4.1)."""

    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(penalty)

    def active(self, count: int) -> bool:
        return bool(self._penalty != 1)

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        for row, row_tokens in zip(logits, tokens, strict=True):
            seen = list(set(row_tokens))
            scores = row[seen]
            row[seen] = np.where(scores < 0, scores * self._penalty, scores / self._penalty)


class NoRepeatNgram:
    """No n-gram occurs twice, including start token and prompt."""

    def __init__(self, size: int) -> None:
        self._size = size

    def active(self, count: int) -> bool:
        return self._size > 0

    def apply(self, logits: NDArray[np.float32], tokens: Sequence[Sequence[int]]) -> None:
        before = self._size - 1
        for row, row_tokens in zip(logits, tokens, strict=True):
            ending = row_tokens[len(row_tokens) - before :]
            starts = range(len(row_tokens) - before)
            repeated = [
                row_tokens[i + before] for i in starts if row_tokens[i : i + before] == ending
            ]
            row[repeated] = -np.inf


def logits_processors(settings: GenerationSettings, end_token_id: int) -> list[LogitsProcessor]:
    """Those that a model's settings ask for, in the order in which Hugging Face applies them."""
    first = 1 if settings.forced_first_token_id is None else 2
    return [
        RepetitionPenalty(settings.repetition_penalty),
        NoRepeatNgram(settings.no_repeat_ngram_size),
        MinNewTokens(settings.min_new_tokens, end_token_id),
        SuppressTokensAt(first, settings.first_suppressed_token_ids),
    ]


def choose(
    logits: NDArray[np.float32],
    processors: Sequence[LogitsProcessor],
    tokens: Sequence[Sequence[int]],
    suppressed: Sequence[int] = (),
) -> Step:
    """The greedy choice of a step after processing.

    Args:
        logits: [B, V], not changed
        processors: those active in this step
        tokens: as in `LogitsProcessor.apply`
        suppressed: never chosen

    Returns:
        the choice; its log-probability is the model's own, normalized over all tokens that are not
        suppressed
    """
    allowed = logits.copy()
    allowed[:, list(suppressed)] = -np.inf
    highest = allowed.max(1, keepdims=True)
    normalizer = np.log(np.exp(allowed - highest).sum(1)) + highest[:, 0]
    own = allowed.copy()
    for processor in processors:
        processor.apply(allowed, tokens)
    chosen = allowed.argmax(1)
    return Step(chosen, np.take_along_axis(own, chosen[:, None], 1)[:, 0] - normalizer)
