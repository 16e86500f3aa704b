"""Results of scoring, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.errors import DragomanError


@dataclass(frozen=True)
class ScoredPair:
    """The probability of one target, given its source.

    Attributes:
        tokens: ids of the scored tokens, including the end token unless `end_token` is False
        token_log_probabilities: natural logarithm of the probability of each token over the whole
            vocabulary, given the source and the preceding tokens
        log_probability: sum of `token_log_probabilities`
        error: reason for the rejection; None if the pair was scored. Other pairs are not affected.
        language: for speech, code of the requested or detected language; None for text models and
            for speech models without language tokens
    """

    tokens: tuple[int, ...]
    token_log_probabilities: tuple[float, ...]
    log_probability: float
    error: str | None = None
    language: str | None = None


def rejected(reason: str) -> ScoredPair:
    """Return the result of a pair that cannot be scored."""
    return ScoredPair((), (), 0.0, reason)


def perplexity(scored: Iterable[ScoredPair]) -> float:
    """Return the perplexity of several targets: exp of minus the mean token log-probability.

    Scored end tokens count. Rejected pairs do not count.

    Raises:
        DragomanError: there are no tokens.
    """
    values = [value for pair in scored for value in pair.token_log_probabilities]
    return perplexity_of(math.fsum(values), len(values))


def perplexity_of(log_probability: float, tokens: int) -> float:
    """Return the perplexity for a sum of log-probabilities over a number of tokens.

    Raises:
        DragomanError: there are no tokens.
    """
    if not tokens:
        raise DragomanError("perplexity: expected at least one scored token, found none")
    try:
        return math.exp(-log_probability / tokens)
    except OverflowError:
        return math.inf
