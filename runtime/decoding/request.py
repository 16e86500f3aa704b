"""Decoding requests, an input and the rules for its output, and batches of inputs as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.generation_settings import GenerationSettings

from ..backends.interface import BackendError, Encoded
from ..backends.rows import padded_length
from ..format.model_spec import ModelSpec
from .logits_processors import (
    LogitsProcessor,
    Prohibition,
    Row,
    SuppressTokens,
    logits_processors,
)

Input = TypeVar("Input")
Outcome = TypeVar("Outcome")

MAX_LOGITS = 2**26
"""Maximum number of logits in a batch with logits for every token: 256 MiB of float32. An input
with more is computed in a batch of its own."""


def batches(
    lengths: Sequence[int], *, max_batch_size: int, max_batch_tokens: int
) -> Iterator[list[int]]:
    """Group inputs of similar length; yield lists of indices into `lengths`.

    The longest are first, so that a batch that does not fit into memory fails immediately.

    Args:
        max_batch_tokens: maximum number of source tokens in a batch, including padding; a longer
            input forms its own batch
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batch: list[int] = []
    for index in order:
        widest = lengths[batch[0]] if batch else lengths[index]
        if batch and (len(batch) == max_batch_size or widest * (len(batch) + 1) > max_batch_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def run_or_split(
    run: Callable[[list[Input]], list[Outcome]],
    inputs: list[Input],
    failed: Callable[[str], Outcome],
) -> list[Outcome]:
    """Run a batch; if the backend fails, for example out of memory, run its halves in turn.

    Args:
        failed: returns the outcome of an input that fails in its own batch, given the reason
    """
    try:
        return run(inputs)
    except (BackendError, MemoryError) as error:
        if len(inputs) == 1:
            return [failed(str(error) or "not enough memory")]
    half = len(inputs) // 2
    return [
        *run_or_split(run, inputs[:half], failed),
        *run_or_split(run, inputs[half:], failed),
    ]


EncoderInput = list[int] | NDArray[np.float32]
"""One source for the encoder: token ids, or features of audio [mel bins, frames]."""


def as_batch(
    sources: Sequence[EncoderInput], model: ModelSpec, multiple: int = 1
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a batch of sources and its mask, bool [B, S], True at tokens.

    The batch is int64 [B, S] for token ids, or float32 [B, mel bins, frames] for audio features,
    where the mask covers all frames. For `multiple`, see `Limits.source_multiple`.
    """
    if model.takes_audio:
        mask = np.ones((len(sources), model.max_source_positions), np.bool_)
        return np.stack([np.asarray(source, np.float32) for source in sources]), mask
    longest = max(map(len, sources))
    length = padded_length(longest, multiple, model.max_source_positions)
    return pad([list(map(int, source)) for source in sources], model.pad_token_id, length)


def pad(
    sources: Sequence[Sequence[int]], pad_token_id: int, length: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad token ids to int64 [B, S], S at least `length`; return also the mask, True at tokens."""
    shape = (len(sources), max(length, *(len(source) for source in sources)))
    tokens = np.full(shape, pad_token_id, np.int64)
    mask = np.zeros(shape, np.bool_)
    for row, source in enumerate(sources):
        tokens[row, : len(source)] = source
        mask[row, : len(source)] = True
    return tokens, mask


PrefixToken = int | Sequence[int]
"""A token, or several tokens from which the most probable is selected."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of an output, independent of the strategy."""

    limit: int
    end_tokens: Sequence[int]
    processors: Sequence[LogitsProcessor] = ()
    prohibitions: Sequence[Prohibition] = ()
    """Processors that exclude forbidden tokens, applied last."""
    suppressed: Sequence[int] = ()
    """Tokens that are never chosen; the graph excludes them."""
    forced_first: int | None = None
    """First new token, independent of scores."""
    forced_last: int | None = None
    alternatives: int = 0
    renormalize: bool = False
    """Whether scores are those of distributions over the allowed tokens."""

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
            processors: applied after those of the settings
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
    """An input to decode."""

    source: EncoderInput | Encoded
    """Token ids, features of audio [mel bins, frames], or the encoder's outputs for one window of
    audio, as `Backend.encode` returns them."""
    prompt: Sequence[int]
    """Decoder input before the first new token, the start token first."""
    rules: Rules
    prefix: Sequence[PrefixToken] = field(default=())
    """Tokens that the decoder reads one by one before the first new token."""
    observed: int | None = None
    """Token whose probability after the prompt is kept with the output."""
    keeps_encoded: Callable[[Any], bool] | None = None
    """Returns whether what the decoder reads of the source is kept with a `DecodedJob` that is
    finished; None: it is not."""
    allowed: NDArray[np.int64] | None = None
    """The tokens that the output may have, int64 ascending; None: all."""

    @property
    def is_encoded(self) -> bool:
        """Whether the source is encoded."""
        return isinstance(self.source, Mapping)

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
