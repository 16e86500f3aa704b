"""Rules that change the scores of next tokens, in the order of Hugging Face.

Greedy decoding and sampling apply them to logits, beam search to log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.generation_settings import GenerationSettings


@dataclass(frozen=True)
class Row:
    """The tokens of a row of a batch."""

    source: Sequence[int]
    """Tokens of the source without padding; empty for audio features."""
    tokens: list[int]
    """Decoder input so far, the start token first; decoding appends to it."""


class LogitsProcessor(Protocol):
    """Changes the scores of a step before a token is chosen."""

    def active(self, count: int) -> bool:
        """Return whether it can change the choice of the count-th new token; the first is 1."""
        return True

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Change scores [V] in place."""


class Prohibition(LogitsProcessor, Protocol):
    """Excludes forbidden tokens, with priority over all other options."""

    def forbids(self, row: Row, token: int) -> bool:
        """Return whether a token must not follow."""


class SuppressTokens:
    """Excludes tokens. Subclasses only restrict the steps."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)

    def active(self, count: int) -> bool:
        """Return whether it can change the choice of the count-th new token."""
        return bool(self.tokens)

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Change scores [V] in place."""
        scores[self.tokens] = -np.inf


class SuppressTokensAt(SuppressTokens):
    """Excludes tokens from being the count-th new token."""

    def __init__(self, count: int, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self._count = count

    def active(self, count: int) -> bool:
        """Return whether it can change the choice of the count-th new token."""
        return count == self._count and super().active(count)


class MinNewTokens(SuppressTokens):
    """Excludes end tokens from the first `count` new tokens."""

    def __init__(self, count: int, end_tokens: Sequence[int]) -> None:
        super().__init__(end_tokens)
        self._count = count

    def active(self, count: int) -> bool:
        """Return whether it can change the choice of the count-th new token."""
        return count <= self._count and super().active(count)


class RepetitionPenalty(LogitsProcessor):
    """Penalizes repeated tokens (Keskar et al. 2019, section 4.1).

    Positive scores are divided by the penalty, negative scores multiplied.
    """

    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(penalty)

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Change scores [V] in place."""
        seen = list(set(row.tokens))
        before = scores[seen]
        scores[seen] = np.where(before < 0, before * self._penalty, before / self._penalty)


class NoRepeatNgram(LogitsProcessor):
    """Excludes tokens that would repeat an n-gram."""

    def __init__(self, size: int, earlier: Callable[[Row], Sequence[int]]) -> None:
        self._size, self._earlier = size, earlier

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Change scores [V] in place."""
        before = self._size - 1
        tokens, earlier = row.tokens, self._earlier(row)
        if len(tokens) < before:
            return
        ending = tokens[len(tokens) - before :]
        starts = range(len(earlier) - before)
        repeated = [earlier[i + before] for i in starts if earlier[i : i + before] == ending]
        scores[repeated] = -np.inf


class NoBadWords:
    """Excludes the last token of a bad word if the other tokens precede it."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words = [(list(word[:-1]), word[-1]) for word in words]

    def active(self, count: int) -> bool:
        """Return whether it can change the choice of the count-th new token."""
        return bool(self._words)

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Change scores [V] in place."""
        for beginning, last in self._words:
            if row.tokens[len(row.tokens) - len(beginning) :] == beginning:
                scores[last] = -np.inf

    def forbids(self, row: Row, token: int) -> bool:
        """Return whether a token must not follow."""
        return any(
            last == token and row.tokens[len(row.tokens) - len(beginning) :] == beginning
            for beginning, last in self._words
        )


def logits_processors(
    settings: GenerationSettings, end_tokens: Sequence[int], prompt_length: int
) -> list[LogitsProcessor]:
    """Return the processors of a model's settings, except suppression, which is in the graph."""
    fewest = max(settings.min_new_tokens, settings.min_length - prompt_length)
    # Processors that never act are omitted here, instead of at every step of every row.
    found: list[LogitsProcessor] = []
    if settings.repetition_penalty != 1:
        found.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        found.append(NoRepeatNgram(settings.no_repeat_ngram_size, lambda row: row.tokens))
    if settings.encoder_no_repeat_ngram_size:
        found.append(NoRepeatNgram(settings.encoder_no_repeat_ngram_size, lambda row: row.source))
    if settings.bad_words:
        found.append(NoBadWords(settings.bad_words))
    if fewest > 0:
        found.append(MinNewTokens(fewest, end_tokens))
    if settings.first_suppressed_token_ids:
        first = settings.first_free
        found.append(SuppressTokensAt(first, settings.first_suppressed_token_ids))
    return found
