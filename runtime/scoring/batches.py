"""Pairs scored in batches of similar length, within bounds of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..backends.interface import Backend
from ..decoding.batching import MAX_LOGITS, batches, run_or_split
from ..format.model_spec import ModelSpec
from .results import ScoredPair, rejected
from .teacher_forcing import ForcedPair, token_log_probabilities

MAX_TOKENS = 4096
"""The most positions of a batch on either side, including padding."""
MAX_WINDOWS = 8
"""The most windows of audio in a batch."""


def score_in_batches(
    backend: Backend,
    model: ModelSpec,
    pairs: Sequence[ForcedPair | ScoredPair],
    max_batch_size: int,
) -> list[ScoredPair]:
    """Score all pairs that are not scored or rejected yet; results in the same order.

    A batch that fails, as for lack of memory, is halved; a pair that fails alone is rejected.
    """
    results = {i: pair for i, pair in enumerate(pairs) if isinstance(pair, ScoredPair)}
    left = {i: pair for i, pair in enumerate(pairs) if isinstance(pair, ForcedPair)}
    indices = list(left)
    rows = min(max_batch_size, backend.limits.rows or max_batch_size)
    lengths = [(len(left[i].source), len(left[i].read)) for i in indices]
    for batch in forcing_batches(model, lengths, rows):
        members = [indices[i] for i in batch]
        scored = run_or_split(
            lambda part: [
                ScoredPair(pair.target, tuple(values.tolist()), float(values.sum()))
                for pair, values in zip(
                    part, token_log_probabilities(backend, model, part), strict=True
                )
            ],
            [left[i] for i in members],
            rejected,
        )
        results.update(zip(members, scored, strict=True))
    return [results[i] for i in range(len(pairs))]


def forcing_batches(
    model: ModelSpec, lengths: Sequence[tuple[int, int]], max_batch_size: int
) -> Iterator[list[int]]:
    """Group pairs of similar length so that their logits fit into memory.

    Args:
        lengths: of each pair, the positions of its source and those that the decoder reads

    Yields:
        indices into `lengths`, each exactly once
    """
    # Windows of audio are all alike.
    longer = [read if model.takes_audio else max(source, read) for source, read in lengths]
    rows = min(max_batch_size, MAX_WINDOWS) if model.takes_audio else max_batch_size
    tokens = min(MAX_TOKENS, MAX_LOGITS // model.target_vocab_size)
    return batches(longer, max_batch_size=rows, max_batch_tokens=tokens)
