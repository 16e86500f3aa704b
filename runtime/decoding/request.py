"""Decoding requests: an input and the rules for its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.generation_settings import GenerationSettings

from .batching import EncoderInput
from .logits_processors import (
    LogitsProcessor,
    Prohibition,
    Row,
    SuppressTokens,
    logits_processors,
)

PrefixToken = int | Sequence[int]
"""A token, or several tokens from which the most probable is selected."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of an output, independent of the strategy.

    Attributes:
        limit: maximum number of new tokens, including the end token
        end_tokens: tokens that end an output
        processors: processors of scores, in order of application
        prohibitions: processors that exclude forbidden tokens, applied last
        suppressed: tokens that are never chosen; the graph excludes them
        forced_first: first new token, independent of scores
        forced_last: new token at the limit, independent of scores
        alternatives: number of best tokens to report for each new token
        renormalize: whether scores are those of distributions over the allowed tokens
    """

    limit: int
    end_tokens: Sequence[int]
    processors: Sequence[LogitsProcessor] = ()
    prohibitions: Sequence[Prohibition] = ()
    suppressed: Sequence[int] = ()
    forced_first: int | None = None
    forced_last: int | None = None
    alternatives: int = 0
    renormalize: bool = False

    @classmethod
    def of(
        cls,
        settings: GenerationSettings,
        *,
        limit: int,
        end_tokens: Sequence[int],
        prompt_length: int,
        processors: Sequence[LogitsProcessor] = (),
        prohibitions: Sequence[Prohibition] = (),
        alternatives: int = 0,
    ) -> Rules:
        """Return the rules of a model's settings.

        Args:
            prompt_length: number of prompt tokens, including the start token
            processors: additional processors, applied after those of the settings
        """
        return cls(
            limit=limit,
            end_tokens=end_tokens,
            processors=(*logits_processors(settings, end_tokens, prompt_length), *processors),
            prohibitions=prohibitions,
            suppressed=settings.suppressed_token_ids,
            forced_first=settings.forced_first_token_id,
            forced_last=settings.last_token(limit),
            alternatives=alternatives,
            renormalize=settings.renormalize_logits,
        )

    def forced_at(self, count: int) -> int | None:
        """Return the forced token if the count-th new token is at the limit, else None."""
        return self.forced_last if count == self.limit else None

    def active(self, count: int) -> list[LogitsProcessor]:
        """Return the processors that can change the choice of the count-th new token."""
        if not self.processors and not self.prohibitions:  # fast path: runs at every step
            return []
        everything = (*self.processors, *self.prohibitions)
        return [processor for processor in everything if processor.active(count)]

    def excluded(self, count: int) -> set[int] | None:
        """Return the tokens excluded at the count-th new token, without suppressed tokens.

        None if the rules change the scores of other tokens, too.
        """
        active = self.active(count)
        plain = [processor for processor in active if isinstance(processor, SuppressTokens)]
        if len(plain) < len(active) or (active and self.renormalize):
            return None
        return {token for processor in plain for token in processor.tokens}

    def apply(self, scores: NDArray[np.float32], row: Row, count: int) -> None:
        """Change the scores [V] of the count-th new token in place."""
        SuppressTokens(self.suppressed).apply(scores, row)
        for processor in self.active(count):
            processor.apply(scores, row)

    def normalizer(self, scores: NDArray[np.float32]) -> float:
        """Return what to subtract from scores [V] after `apply`; 0 unless they are renormalized."""
        largest = scores.max()
        if not self.renormalize or largest == -np.inf:
            return 0.0
        return float(largest + np.log(np.exp(scores - largest).sum(dtype=np.float64)))

    def forbid(self, row: Row, token: int) -> bool:
        """Return whether a token must not follow."""
        return any(prohibition.forbids(row, token) for prohibition in self.prohibitions)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """An input to decode.

    Attributes:
        source: token ids, or features of audio [mel bins, frames]
        prompt: decoder input before the first new token, the start token first
        prefix: tokens that the decoder reads one by one before the first new token
        observed: token whose probability after the prompt is kept with the output
        keeps_encoded: whether the encoder's outputs are kept with the output
        allowed: the tokens that the output may have, int64 ascending; None: all
    """

    source: EncoderInput
    prompt: Sequence[int]
    rules: Rules
    prefix: Sequence[PrefixToken] = field(default=())
    observed: int | None = None
    keeps_encoded: bool = False
    allowed: NDArray[np.int64] | None = None

    @property
    def source_tokens(self) -> Sequence[int]:
        """The token ids of the source; empty for audio."""
        return self.source if isinstance(self.source, list) else ()

    @property
    def read_at_once(self) -> int:
        """The number of tokens read first: the prompt and a forced first token."""
        return len(self.prompt) + (self.rules.forced_first is not None)

    @property
    def capacity(self) -> int:
        """The number of positions of a row. The decoder does not read the last new token."""
        return len(self.prompt) + len(self.prefix) + self.rules.limit - 1
