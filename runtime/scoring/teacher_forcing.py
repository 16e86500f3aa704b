"""Teacher forcing: one pass over sources and targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import StopCheck, never_stopped
from ..backends.interface import Backend, BackendError
from ..decoding.request import MAX_LOGITS, EncoderInput, as_batch, batches, pad, run_or_split
from ..decoding.results import collected
from ..format.model_spec import ModelSpec
from .interface import ScoredPair, rejected


@dataclass(frozen=True)
class ForcedPair:
    """A source and a target as token ids or audio features."""

    source: EncoderInput
    """Token ids, or audio features [mel bins, frames]."""
    given: tuple[int, ...]
    """Decoder tokens before the target, which are not scored: the start token, the prompt and a
    forced first token; at least one."""
    target: tuple[int, ...]
    """Tokens to score, at least one."""

    @property
    def read(self) -> list[int]:
        """The decoder input: all tokens but the last."""
        return [*self.given, *self.target[:-1]]


def token_log_probabilities(
    backend: Backend, model: ModelSpec, pairs: Sequence[ForcedPair]
) -> list[NDArray[np.float64]]:
    """Return the log-probability of each token of each target, [target] in nats.

    The softmax is over the whole vocabulary; no token is suppressed.
    """
    sources = [pair.source for pair in pairs]
    source, source_mask = as_batch(sources, model, backend.limits.source_multiple)
    read, _ = pad([pair.read for pair in pairs], model.pad_token_id)
    logits = backend.score(source, source_mask, read)
    scored = []
    for row, pair in zip(logits, pairs, strict=True):
        first = len(pair.given) - 1
        values = log_probabilities_of(row[first : first + len(pair.target)], pair.target)
        if not np.isfinite(values).all():
            raise BackendError("the model's logits are not finite numbers")
        scored.append(values)
    return scored


def log_probabilities_of(logits: NDArray[Any], tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return the log-probabilities [T] of tokens [T] for logits [T, V] of any floating type."""
    wide = logits.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore"):  # infinite logits give NaN
        shifted = wide - wide.max(axis=1, keepdims=True)
    normalizer = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    chosen = shifted[np.arange(len(tokens)), list(tokens)]
    return np.asarray(chosen - normalizer, np.float64)


MAX_TOKENS = 4096
"""Maximum number of encoder or decoder positions in a batch, including padding."""
MAX_WINDOWS = 8
"""Maximum number of audio windows in a batch."""


def score_in_batches(
    backend: Backend,
    model: ModelSpec,
    pairs: Sequence[ForcedPair | ScoredPair],
    max_batch_size: int,
    check: StopCheck = never_stopped,
) -> list[ScoredPair]:
    """Score the pairs without a result; return all results in order.

    A batch that fails, for example out of memory, is halved; a pair that fails alone is rejected.
    """
    return collected(scored(backend, model, pairs, max_batch_size, check), len(pairs))


def scored(
    backend: Backend,
    model: ModelSpec,
    pairs: Sequence[ForcedPair | ScoredPair],
    max_batch_size: int,
    check: StopCheck,
) -> Iterator[tuple[int, ScoredPair]]:
    """Yield the index and result of each pair; see `score_in_batches`."""
    yield from ((i, pair) for i, pair in enumerate(pairs) if isinstance(pair, ScoredPair))
    left = {i: pair for i, pair in enumerate(pairs) if isinstance(pair, ForcedPair)}
    indices = list(left)
    rows = min(max_batch_size, backend.limits.rows or max_batch_size)
    lengths = [(len(left[i].source), len(left[i].read)) for i in indices]

    def run(part: list[ForcedPair]) -> list[ScoredPair]:
        check()
        values = token_log_probabilities(backend, model, part)
        return [
            ScoredPair(pair.target, tuple(each.tolist()), float(each.sum()))
            for pair, each in zip(part, values, strict=True)
        ]

    for batch in forcing_batches(model, lengths, rows):
        members = [indices[i] for i in batch]
        found = run_or_split(run, [left[i] for i in members], rejected)
        yield from zip(members, found, strict=True)


def forcing_batches(
    model: ModelSpec,
    lengths: Sequence[tuple[int, int]],
    max_batch_size: int,
    max_logits: int | None = None,
) -> Iterator[list[int]]:
    """Group pairs of similar length so that their logits fit into memory.

    Yields:
        indices into `lengths`
    """
    # All windows of audio have the same length.
    longer = [read if model.takes_audio else max(source, read) for source, read in lengths]
    rows = min(max_batch_size, MAX_WINDOWS) if model.takes_audio else max_batch_size
    tokens = min(MAX_TOKENS, (max_logits or MAX_LOGITS) // model.target_vocab_size)
    return batches(longer, max_batch_size=rows, max_batch_tokens=tokens)
