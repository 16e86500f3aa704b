"""The greedy decoding loop: the same on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import Backend, DecodingState, Step
from .choosing import Rule, choose, logits_rules
from .rules import Rules

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
    source: NDArray[Any],
    source_mask: NDArray[np.bool_],
    prompt: NDArray[np.int64],
    limits: Sequence[int],
    rules: Rules,
    end_token_id: int,
    more: Sequence[Rule] = (),
) -> Iterator[Choice]:
    """Decode a batch, yielding every token as soon as it is known, rows in order within a step.

    Args:
        source: tokens, int64 [B, S], or features of audio, float32 [B, mel bins, frames]
        source_mask: [B, S], True at tokens
        prompt: [B, P], what the decoder is given to begin with, the start token first
        limits: the most tokens to generate for each row, the end token included
        more: rules beyond those that `rules` states
    """
    forced = rules.forced_first_token_id
    tokens = prompt.tolist()  # the forced one is a new token, and is added as such
    if forced is not None:
        prompt = np.pad(prompt, ((0, 0), (0, 1)), constant_values=forced)
    given = prompt.shape[1]
    capacity = max(given, given + max(limits) - (1 if forced is None else 2))
    with closing(backend.start(source, source_mask, prompt, capacity)) as state:
        yield from continued(state, tokens, limits, rules, end_token_id, more)


def continued(
    state: DecodingState,
    tokens: list[list[int]],
    limits: Sequence[int],
    rules: Rules,
    end_token_id: int,
    more: Sequence[Rule] = (),
) -> Iterator[Choice]:
    """`greedy` from a state that is begun.

    Args:
        tokens: what the decoder of each row has been given; the new tokens are added to it
    """
    rows = np.arange(len(limits))  # which input each row of the state is
    running = np.ones(len(limits), np.bool_)
    limit = np.asarray(limits)
    every = (*logits_rules(rules, end_token_id), *more)
    for count in range(1, max(limits) + 1):
        step = _step(state, count, [tokens[row] for row in rows], rules, every)
        at_limit = count >= limit[rows]
        if rules.forced_last_token_id is not None and at_limit.any():
            step = _forced(step, at_limit, rules.forced_last_token_id)
        last = (step.tokens == end_token_id) | at_limit
        for i in np.flatnonzero(running):
            row, token = int(rows[i]), int(step.tokens[i])
            tokens[row].append(token)
            yield Choice(row, token, float(step.log_probabilities[i]), bool(last[i]))
        running &= ~last
        left = int(running.sum())
        if left == 0:
            return
        if len(rows) - left >= max(1, COMPACT_SHARE * len(rows)):
            keep = np.flatnonzero(running)
            state.keep(keep)
            rows, running = rows[keep], running[keep]


def _step(
    state: DecodingState,
    count: int,
    tokens: list[list[int]],
    rules: Rules,
    every: Sequence[Rule],
) -> Step:
    """The count-th new token of each row: forced, chosen by the graph, or chosen under rules."""
    if count == 1 and rules.forced_first_token_id is not None:
        forced = np.full(len(tokens), rules.forced_first_token_id)
        return Step(forced, np.zeros(len(tokens), np.float32))
    active = [rule for rule in every if rule.active(count)]
    if not active:
        return state.step()
    return state.step_choosing(
        lambda logits: choose(logits, active, tokens, rules.suppressed_token_ids)
    )


def _forced(step: Step, where: NDArray[np.bool_], token_id: int) -> Step:
    """Nothing was chosen there, so nothing is said of its probability."""
    return Step(
        np.where(where, token_id, step.tokens),
        np.where(where, np.float32(0), step.log_probabilities),
    )
