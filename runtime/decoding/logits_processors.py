"""Choosing tokens from logits on the host, where the graph's own choice does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Step
from ..format.generation_settings import GenerationSettings


@dataclass(frozen=True)
class Row:
    """What is known of a row of a batch when a token is chosen for it.

    Attributes:
        source: its tokens, without padding; none for features of audio
        tokens: the decoder's input so far, the start token first; decoding appends to it
    """

    source: Sequence[int]
    tokens: list[int]


class LogitsProcessor(Protocol):
    """Changes the logits of a step before a token is chosen."""

    def active(self, count: int) -> bool:
        """Whether it can change the choice of the count-th new token (the first is 1)."""

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        """Change logits [B, V] in place."""


class MinNewTokens:
    """No end token is among the first `count` new tokens."""

    def __init__(self, count: int, end_tokens: Sequence[int]) -> None:
        self._count, self._end = count, list(end_tokens)

    def active(self, count: int) -> bool:
        return count <= self._count

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        logits[:, self._end] = -np.inf


class SuppressTokensAt:
    """Some tokens are not chosen as the count-th new token."""

    def __init__(self, count: int, token_ids: Sequence[int]) -> None:
        self._count, self._ids = count, list(token_ids)

    def active(self, count: int) -> bool:
        return count == self._count and bool(self._ids)

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        logits[:, self._ids] = -np.inf


class RepetitionPenalty:
    """Positive logits of tokens that occurred are divided by the penalty, negative ones multiplied
    (Keskar et al. 2019, section 4.1)."""

    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(penalty)

    def active(self, count: int) -> bool:
        return bool(self._penalty != 1)

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        for scores_of_row, row in zip(logits, rows, strict=True):
            seen = list(set(row.tokens))
            scores = scores_of_row[seen]
            scores_of_row[seen] = np.where(
                scores < 0, scores * self._penalty, scores / self._penalty
            )


class NoRepeatNgram:
    """No n-gram that occurs earlier occurs again.

    Args:
        earlier: where: in the decoder's input so far, or in the source
    """

    def __init__(self, size: int, earlier: Callable[[Row], Sequence[int]]) -> None:
        self._size, self._earlier = size, earlier

    def active(self, count: int) -> bool:
        return self._size > 0

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        before = self._size - 1
        for scores, row in zip(logits, rows, strict=True):
            tokens, earlier = row.tokens, self._earlier(row)
            if len(tokens) < before:
                continue
            ending = tokens[len(tokens) - before :]
            starts = range(len(earlier) - before)
            repeated = [earlier[i + before] for i in starts if earlier[i : i + before] == ending]
            scores[repeated] = -np.inf


class NoBadWords:
    """The last token of a bad word is not chosen after the others."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words = [(list(word[:-1]), word[-1]) for word in words]

    def active(self, count: int) -> bool:
        return bool(self._words)

    def apply(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> None:
        for scores, row in zip(logits, rows, strict=True):
            for beginning, last in self._words:
                if row.tokens[-len(beginning) :] == beginning:
                    scores[last] = -np.inf


def logits_processors(
    settings: GenerationSettings, end_tokens: Sequence[int], prompt_length: int
) -> list[LogitsProcessor]:
    """Those that a model's settings ask for, in the order in which Hugging Face applies them.

    Args:
        end_tokens: the tokens that end an output
        prompt_length: of the start token and the prompt
    """
    fewest = max(settings.min_new_tokens, settings.min_length - prompt_length)
    return [
        RepetitionPenalty(settings.repetition_penalty),
        NoRepeatNgram(settings.no_repeat_ngram_size, lambda row: row.tokens),
        NoRepeatNgram(settings.encoder_no_repeat_ngram_size, lambda row: row.source),
        NoBadWords(settings.bad_words),
        MinNewTokens(fewest, end_tokens),
        SuppressTokensAt(settings.first_free, settings.first_suppressed_token_ids),
    ]


def choose(
    logits: NDArray[np.float32],
    processors: Sequence[LogitsProcessor],
    rows: Sequence[Row],
    suppressed: Sequence[int] = (),
) -> Step:
    """The greedy choice of a step after processing.

    Args:
        logits: [B, V], not changed
        processors: those active in this step
        suppressed: never chosen

    Returns:
        the choice; its log-probability is the model's own, normalized over all tokens that are not
        suppressed. Where no token is left, the choice is token 0, as at Hugging Face; like a token
        that is forced, it has no probability, and 0 stands for its logarithm.
    """
    allowed = logits.copy()
    allowed[:, list(suppressed)] = -np.inf
    highest = allowed.max(1, keepdims=True)
    shift = np.where(highest == -np.inf, np.float32(0), highest)
    with np.errstate(divide="ignore"):  # the logarithm of 0, where every token is suppressed
        normalizer = np.log(np.exp(allowed - shift).sum(1)) + shift[:, 0]
    own = allowed.copy()
    for processor in processors:
        processor.apply(allowed, rows)
    chosen = allowed.argmax(1)
    left = np.take_along_axis(allowed, chosen[:, None], 1)[:, 0] != -np.inf
    log_probability = np.zeros(len(chosen), np.float32)
    np.subtract(
        np.take_along_axis(own, chosen[:, None], 1)[:, 0],
        normalizer,
        out=log_probability,
        where=left,
    )
    return Step(chosen, log_probability)
