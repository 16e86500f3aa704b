"""Options and results of calls that score targets, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Unpack

from dragoman.errors import DragomanError, shown
from dragoman.settings.fields import Check, integer, replaced, wrong_fields
from dragoman.settings.generation import DEFAULT_BATCH_SIZE
from dragoman.settings.speech import LanguageKeywords, LanguageOptions


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(LanguageOptions):
    """Options of one call of `Model.score`.

    Attributes:
        end_token: whether to append the end token to every target and score it, unless token ids
            end with one, or the model has none. None: True, or False for a decoder-only model.
        source_language, target_language, language, task, split_special_tokens, strict_audio: see
            `LanguageOptions`
        timestamps: for speech, whether targets, then token ids, have timestamps
        truncate: for text, whether a source that is too long is cut instead of rejected, see
            `GenerationOptions`
        max_batch_size: maximum number of pairs scored together

    Raises:
        DragomanError: options are out of range; lists all of them.
    """

    end_token: Annotated[
        bool | None, Check("True or False", lambda v: isinstance(v, bool | None))
    ] = None
    timestamps: Annotated[bool, Check("True or False", lambda v: isinstance(v, bool))] = False
    truncate: Annotated[bool, Check("True or False", lambda v: isinstance(v, bool))] = False
    max_batch_size: Annotated[int, integer(1, optional=False)] = DEFAULT_BATCH_SIZE

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        if problems:
            raise DragomanError(problems=problems)

    def replace(self, **changes: Unpack[ScoringKeywords]) -> ScoringOptions:
        """Return the options with some changed.

        Raises:
            DragomanError: an option is unknown or out of range.
        """
        return replaced(self, changes)


def scoring_options_of(options: object, changes: ScoringKeywords) -> ScoringOptions:
    """Return the options of a call with changes applied."""
    options = ScoringOptions() if options is None else options
    if not isinstance(options, ScoringOptions):
        raise DragomanError(f"options: expected ScoringOptions, found {shown(options)}")
    return options.replace(**changes)


class ScoringKeywords(LanguageKeywords, total=False):
    """The fields of `ScoringOptions` as keyword arguments."""

    end_token: bool | None
    timestamps: bool
    truncate: bool
    max_batch_size: int


@dataclass(frozen=True)
class ScoredPair:
    """The probability of one target, given its source."""

    tokens: tuple[int, ...]
    """Ids of the scored tokens, including the end token unless `end_token` is False."""
    token_log_probabilities: tuple[float, ...]
    """Natural logarithm of the probability of each token over the whole vocabulary, given the
    source and the preceding tokens."""
    log_probability: float
    """Sum of `token_log_probabilities`."""
    error: str | None = None
    """Reason for the rejection; None if the pair was scored. Other pairs are not affected."""
    language: str | None = None
    """For speech, code of the requested or detected language; None for text models and for speech
    models without language tokens."""


def rejected(reason: str) -> ScoredPair:
    """Return the result of a pair that cannot be scored."""
    return ScoredPair((), (), 0.0, reason)


def perplexity(scored: Iterable[ScoredPair]) -> float:
    """Return the perplexity of several targets: exp of minus the mean token log-probability.

    Scored end tokens count, rejected pairs do not.

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
