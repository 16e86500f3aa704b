"""Pairs scored in batches of similar length, within bounds of memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.interface import Backend
from ..decoding.batching import batches
from ..decoding.outputs import decode_or_split
from ..format.model_spec import ModelSpec
from .results import ScoredPair, rejected
from .teacher_forcing import ForcedPair, token_log_probabilities

MAX_TOKENS = 4096
"""The most positions of a batch on either side, including padding."""
MAX_LOGITS = 2**26
"""The most numbers among the logits of a batch: 256 MiB of float32. A longer target is scored
alone."""
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
    if model.takes_audio:
        rows = min(rows, MAX_WINDOWS)
    for batch in batches(
        [_length(left[i], model) for i in indices],
        max_batch_size=rows,
        max_batch_tokens=min(MAX_TOKENS, MAX_LOGITS // model.target_vocab_size),
    ):
        members = [indices[i] for i in batch]
        scored = decode_or_split(
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


def _length(pair: ForcedPair, model: ModelSpec) -> int:
    """Positions of the longer side; of audio those of the target, since windows are all alike."""
    return max(len(pair.read), 0 if model.takes_audio else len(pair.source))
