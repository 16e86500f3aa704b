"""What is asked of the decoding loop: one input, and everything that decides its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..format.generation_settings import GenerationSettings
from .batching import Encodable
from .logits_processors import (
    LogitsProcessor,
    Prohibition,
    Row,
    SuppressTokens,
    logits_processors,
)

Given = int | Sequence[int]
"""A token that the decoder is given; or several, of which it is given the most probable."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What an output may consist of, whatever strategy finds it.

    Attributes:
        limit: the most new tokens, including the end token
        end_tokens: the tokens that end an output
        processors: in order
        prohibitions: what must not occur, applied last
        suppressed: never chosen; the graph's own choice excludes them
        forced_first: the first new token, whatever the scores
        forced_last: the new token at the limit, likewise
        alternatives: how many of the best tokens are reported for each new one
    """

    limit: int
    end_tokens: Sequence[int]
    processors: Sequence[LogitsProcessor] = ()
    prohibitions: Sequence[Prohibition] = ()
    suppressed: Sequence[int] = ()
    forced_first: int | None = None
    forced_last: int | None = None
    alternatives: int = 0

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
        """The rules that a model's settings state.

        Args:
            prompt_length: of the start token and the prompt
            processors: in addition
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
        )

    def forced_at(self, count: int) -> int | None:
        """The token that is forced as the count-th new one, because the limit is reached."""
        return self.forced_last if count == self.limit else None

    def active(self, count: int) -> list[LogitsProcessor]:
        """The processors that can change the choice of the count-th new token."""
        if not self.processors and not self.prohibitions:  # asked for every row at every step
            return []
        everything = (*self.processors, *self.prohibitions)
        return [processor for processor in everything if processor.active(count)]

    def excluded(self, count: int) -> set[int] | None:
        """The tokens that are not chosen as the count-th new one, beside those that are suppressed;
        None if the rules do more than to exclude tokens.
        """
        active = self.active(count)
        plain = [processor for processor in active if isinstance(processor, SuppressTokens)]
        if len(plain) < len(active):
            return None
        return {token for processor in plain for token in processor.tokens}

    def apply(self, scores: NDArray[np.float32], row: Row, count: int) -> None:
        """Change the scores [V] of the count-th new token in place."""
        SuppressTokens(self.suppressed).apply(scores, row)
        for processor in self.active(count):
            processor.apply(scores, row)

    def forbid(self, row: Row, token: int) -> bool:
        """Whether something that must not occur would with this token."""
        return any(prohibition.forbids(row, token) for prohibition in self.prohibitions)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One input of the decoding loop.

    Attributes:
        source: token ids, or features of audio [mel bins, frames]
        prompt: the decoder's input before the first new token, the start token first
        given: what else the decoder is given, token by token, before the first new one
    """

    source: Encodable
    prompt: Sequence[int]
    rules: Rules
    given: Sequence[Given] = field(default=())

    @property
    def source_tokens(self) -> Sequence[int]:
        """None of audio."""
        return self.source if isinstance(self.source, list) else ()

    @property
    def read_at_once(self) -> int:
        """How many tokens the decoder begins with: the prompt, and a first token that is forced."""
        return len(self.prompt) + (self.rules.forced_first is not None)

    @property
    def capacity(self) -> int:
        """The positions that a row of it needs: the last new token is not read again."""
        return len(self.prompt) + len(self.given) + self.rules.limit - 1
