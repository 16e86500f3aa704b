"""What scoring returns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.errors import DragomanError


@dataclass(frozen=True)
class ScoredPair:
    """The probability of one target, given its source.

    Attributes:
        tokens: the ids that were scored, the end token included unless it was not asked for
        token_log_probabilities: natural logarithms of their probabilities among the whole
            vocabulary, each given the source and the tokens before it
        log_probability: the sum of these
        error: why the pair was rejected; None if it was scored. The other pairs are not affected.
        language: of speech, the code of the stated or detected language; None for text and for
            models that are not told one
    """

    tokens: tuple[int, ...]
    token_log_probabilities: tuple[float, ...]
    log_probability: float
    error: str | None = None
    language: str | None = None


def rejected(reason: str) -> ScoredPair:
    return ScoredPair((), (), 0.0, reason)


def perplexity(scored: Iterable[ScoredPair]) -> float:
    """The perplexity of several targets: exp of minus the mean log-probability of a token, end
    tokens included where they were scored. Rejected pairs do not count.

    Raises:
        DragomanError: there are no tokens.
    """
    values = [value for pair in scored for value in pair.token_log_probabilities]
    return perplexity_of(math.fsum(values), len(values))


def perplexity_of(log_probability: float, tokens: int) -> float:
    """The perplexity of so many tokens, from the sum of their log-probabilities.

    Raises:
        DragomanError: there are no tokens.
    """
    if not tokens:
        raise DragomanError("perplexity: expected at least one scored token, found none")
    try:
        return math.exp(-log_probability / tokens)
    except OverflowError:
        return math.inf
