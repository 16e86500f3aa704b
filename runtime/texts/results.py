"""Hypotheses of the decoding loop -> results of texts."""

from __future__ import annotations

from collections.abc import Sequence

from ..decoding.results import Alternative, FinishReason, Hypothesis, Result
from ..decoding.search import Draft
from .tokenizer import TextCodec


def nothing(text: str | None, reason: FinishReason, error: str | None = None) -> Result:
    """The result of an input that was not decoded."""
    return Result(text, (), 0.0, reason, error)


def result_of(drafts: Sequence[Draft], given: Sequence[int], codec: TextCodec | None) -> Result:
    """The result of one source.

    Args:
        drafts: best first
        given: what they were given to begin with

    Raises:
        TokenizerError: the tokenizer fails on the tokens.
    """
    hypotheses = tuple(_hypothesis(draft, given, codec) for draft in drafts)
    best = hypotheses[0]
    return Result(
        best.text,
        best.tokens,
        best.log_probability,
        best.finish_reason,
        end_token=best.end_token,
        score=best.score,
        hypotheses=hypotheses,
    )


def _hypothesis(draft: Draft, given: Sequence[int], codec: TextCodec | None) -> Hypothesis:
    tokens = (*given, *draft.tokens)
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    if any(draft.alternatives):
        alternatives = (
            *((),) * len(given),
            *(
                tuple(
                    Alternative(token, codec.decode([token]) if codec else None, log_probability)
                    for token, log_probability in best
                )
                for best in draft.alternatives
            ),
        )
    return Hypothesis(
        codec.decode(tokens) if codec else None,
        tokens,
        draft.score,
        draft.log_probability,
        "length" if draft.end_token is None else "end",
        draft.end_token,
        (*(0.0,) * len(given), *draft.log_probabilities),
        alternatives,
    )
