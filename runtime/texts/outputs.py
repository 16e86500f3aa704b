"""Converts hypotheses and streamed tokens to the results of text models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from ..decoding.results import NO_OUTPUT, Alternative, FinishReason, Hypothesis, Result, Token
from ..decoding.running_batch import DecodedJob, Job, SelectedToken
from ..decoding.scheduler import FailedJob
from ..decoding.search import TokenSequence
from .plan import TextPlan
from .tokenizer import TextCodec, TextStream, TokenizerError


def nothing(text: str | None, reason: FinishReason, error: str | None = None) -> Result:
    """Return the result of an input that was not decoded."""
    return Result(text, (), 0.0, reason, error)


def result_of(
    sequences: Sequence[TokenSequence], prefix: Sequence[int], codec: TextCodec | None
) -> Result:
    """Create the result of one source.

    Args:
        sequences: hypotheses, best first
        prefix: tokens that every output begins with

    Raises:
        TokenizerError: the tokenizer fails on the tokens.
    """
    hypotheses = tuple(_hypothesis(sequence, prefix, codec) for sequence in sequences)
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


def _hypothesis(
    sequence: TokenSequence, prefix: Sequence[int], codec: TextCodec | None
) -> Hypothesis:
    tokens = (*prefix, *sequence.tokens)
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    if any(sequence.alternatives):
        alternatives = (
            *((),) * len(prefix),
            *(
                tuple(
                    Alternative(token, codec.decode([token]) if codec else None, log_probability)
                    for token, log_probability in best
                )
                for best in sequence.alternatives
            ),
        )
    return Hypothesis(
        codec.decode(tokens) if codec else None,
        tokens,
        sequence.score,
        sequence.log_probability,
        "length" if sequence.end_token is None else "end",
        sequence.end_token,
        (*(0.0,) * len(prefix), *sequence.log_probabilities),
        alternatives,
    )


class PendingText:
    """A text with its jobs, a search or several samples, which can be decoded at once.

    Args:
        source: token ids
        codec: tokenizers; None if the bundle has none

    Raises:
        RejectedError: see `TextPlan.request`.
    """

    def __init__(self, source: list[int], plan: TextPlan, codec: TextCodec | None) -> None:
        self.source, self.plan, self._codec = source, plan, codec
        request = plan.request(source)
        self.jobs = [Job(n, request, strategy) for n, strategy in enumerate(plan.strategies)]
        self._outcomes: dict[int, DecodedJob[Any] | FailedJob[Any]] = {}

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens that the output begins with."""
        return self.plan.prefix

    def add(self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]) -> Result | None:
        """Add the outcome of a job; return the result after the last one."""
        self._outcomes[number] = outcome
        return self._result() if len(self._outcomes) == len(self.jobs) else None

    def _result(self) -> Result:
        sequences: list[TokenSequence] = []
        for _, outcome in sorted(self._outcomes.items()):
            if isinstance(outcome, FailedJob):
                return self._rejected(str(outcome.error))
            sequences += outcome.sequences
        if not sequences:
            return self._rejected(NO_OUTPUT)
        try:
            return result_of(sequences, self.prefix, self._codec)
        except TokenizerError as failure:
            return nothing("", "rejected", str(failure))

    def _rejected(self, reason: str) -> Result:
        return nothing(self._codec.decode(()) if self._codec else None, "rejected", reason)


class TokenStream:
    """Decodes the token stream of one output.

    Args:
        end_tokens: tokens that are skipped
        text: decoder of tokens; None if the bundle has no tokenizers
    """

    def __init__(self, end_tokens: Collection[int], text: TextStream | None) -> None:
        self._end_tokens, self._text = end_tokens, text

    def tokens(self, choices: Iterable[SelectedToken]) -> Iterator[Token]:
        """Yield each chosen token with its text."""
        for choice in choices:
            if choice.token not in self._end_tokens:
                piece = self._text.step(choice.token) if self._text else None
                yield Token(choice.token, piece, choice.log_probability)
