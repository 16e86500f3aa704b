"""The greedy decoding loop: the same on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from .backends import Backend, DecodingState
from .manifest import ModelFacts
from .scheduling import pad

COMPACT_SHARE = 1 / 8
"""Finished rows leave a batch once they are this share of it: moving the others costs about what
one more step of those rows would."""


@dataclass(frozen=True)
class Choice:
    """A token chosen for one row of a batch. `last` if the row ends with it: it is the end token,
    or the row's limit is reached."""

    row: int
    token: int
    log_probability: float
    last: bool


def greedy(
    backend: Backend,
    model: ModelFacts,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    min_new_tokens: int = 0,
) -> Iterator[Choice]:
    """Decode a batch, yielding every token as soon as it is known, rows in order within a step.

    Args:
        sources: source token ids, at least one each
        limits: the most tokens to generate for each row, the end token included
        min_new_tokens: the end token is excluded from this many first choices of each row
    """
    source, source_mask = pad(sources, model.pad_token_id)
    with closing(backend.start(source, source_mask, capacity=max(limits))) as state:
        yield from _choices(state, model.end_token_id, limits, min_new_tokens)


def _choices(
    state: DecodingState, end_token_id: int, limits: Sequence[int], min_new_tokens: int
) -> Iterator[Choice]:
    rows = np.arange(len(limits))  # which input each row of the state is
    running = np.ones(len(limits), np.bool_)
    limit = np.asarray(limits)
    for count in range(1, max(limits) + 1):
        if count <= min_new_tokens:
            step = state.step_without(end_token_id)
        else:
            step = state.step()
        last = (step.tokens == end_token_id) | (count >= limit[rows])
        for i in np.flatnonzero(running):
            yield Choice(
                int(rows[i]), int(step.tokens[i]), float(step.log_probabilities[i]), bool(last[i])
            )
        running &= ~last
        left = int(running.sum())
        if left == 0:
            return
        if len(rows) - left >= max(1, COMPACT_SHARE * len(rows)):
            keep = np.flatnonzero(running)
            state.keep(keep)
            rows, running = rows[keep], running[keep]
