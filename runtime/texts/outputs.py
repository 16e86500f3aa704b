"""Converts hypotheses and tokens to results of text models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..decoding.results import NO_OUTPUT, Alternative, FinishReason, Hypothesis, Result, Token
from ..decoding.running_batch import DecodedJob, Job, SelectedToken
from ..decoding.scheduler import FailedJob
from ..decoding.search import TokenSequence
from .plan import TextPlan
from .tokenizer import CleaningStream, EncodedSource, TextCodec, TextStream, TokenizerError


def nothing(text: str | None, reason: FinishReason, error: str | None = None) -> Result:
    """Return the result of an input that was not decoded."""
    return Result(text, (), 0.0, reason, error)


def result_of(
    sequences: Sequence[TokenSequence],
    prefix: Sequence[int],
    codec: TextCodec | None,
    *,
    skip_special_tokens: bool = True,
) -> Result:
    """Create the result of one source."""

    def decode(tokens: Sequence[int]) -> str | None:
        return codec.decode(tokens, skip_special_tokens=skip_special_tokens) if codec else None

    hypotheses = tuple(_hypothesis(sequence, prefix, decode) for sequence in sequences)
    return as_result(hypotheses)


def as_result(hypotheses: Sequence[Hypothesis], **more: Any) -> Result:
    """Return the result with these outputs, best first."""
    best = hypotheses[0]
    return Result(
        best.text,
        best.tokens,
        best.log_probability,
        best.finish_reason,
        end_token=best.end_token,
        score=best.score,
        hypotheses=tuple(hypotheses),
        **more,
    )


def _hypothesis(
    sequence: TokenSequence, prefix: Sequence[int], decode: Callable[[Sequence[int]], str | None]
) -> Hypothesis:
    tokens = (*prefix, *sequence.tokens)
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    if any(sequence.alternatives):
        alternatives = (
            *((),) * len(prefix),
            *(
                tuple(
                    Alternative(token, decode([token]), log_probability)
                    for token, log_probability in best
                )
                for best in sequence.alternatives
            ),
        )
    return Hypothesis(
        decode(tokens),
        tokens,
        sequence.score,
        sequence.log_probability,
        "length" if sequence.end_token is None else "end",
        sequence.end_token,
        (*(0.0,) * len(prefix), *sequence.log_probabilities),
        alternatives,
    )


class PendingText:
    """A text with its jobs, a search or several samples."""

    def __init__(
        self, source: EncodedSource, plan: TextPlan, codec: TextCodec | None, *, truncated: bool
    ) -> None:
        self.source, self.plan, self._codec = source, plan, codec
        self._truncated = truncated
        request = plan.request(source.tokens)
        self.jobs = [Job(n, request, strategy) for n, strategy in enumerate(plan.strategies)]
        self._outcomes: dict[int, DecodedJob[Any] | FailedJob[Any]] = {}

    @property
    def prefix(self) -> Sequence[int]:
        """Tokens that the output begins with."""
        return self.plan.prefix

    @property
    def longest(self) -> int:
        """The number of tokens of the source."""
        return len(self.source.tokens)

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Result | Sequence[Job[int]]:
        """Add an outcome; return the result after the last one."""
        self._outcomes[number] = outcome
        return self._result() if len(self._outcomes) == len(self.jobs) else ()

    def _result(self) -> Result:
        sequences: list[TokenSequence] = []
        for _, outcome in sorted(self._outcomes.items()):
            if isinstance(outcome, FailedJob):
                return self._rejected(str(outcome.error))
            sequences += outcome.sequences
        if not sequences:
            return self._rejected(NO_OUTPUT)
        try:
            result = result_of(
                sequences,
                self.prefix,
                self._codec,
                skip_special_tokens=self.plan.options.skip_special_tokens,
            )
            return dataclasses.replace(
                result, truncated=self._truncated, unknown_characters=self.source.unknown
            )
        except TokenizerError as failure:
            return nothing("", "rejected", str(failure))

    def _rejected(self, reason: str) -> Result:
        return nothing(self._codec.decode(()) if self._codec else None, "rejected", reason)


class TokenStream:
    """Decodes the token stream of one output."""

    def __init__(self, text: TextStream | None) -> None:
        self._text = text
        self._last: Token | None = None

    def tokens(self, choices: Iterable[SelectedToken]) -> Iterator[Token]:
        """Yield each chosen token with its text.

        A token whose text is held back is yielded together with the next one or the rest.
        """
        for choice in choices:
            if self._text is None:
                yield Token(choice.token, None, choice.log_probability, choice.is_end)
                continue
            if choice.is_end:
                yield from self.rest()
                yield Token(choice.token, "", choice.log_probability, is_end=True)
                continue
            token = Token(choice.token, self._text.step(choice.token), choice.log_probability)
            if self._last is not None:
                yield self._last
            holds = isinstance(self._text, CleaningStream) or not token.text
            self._last = token if holds else None
            if not holds:
                yield token

    def rest(self) -> Iterator[Token]:
        """Yield the token that is left at the end, if any."""
        if self._text is not None and self._last is not None:
            last, self._last = self._last, None
            yield dataclasses.replace(last, text=f"{last.text}{self._text.rest()}")
