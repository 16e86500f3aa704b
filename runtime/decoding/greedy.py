"""The greedy decoding loop: the same on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Backend, DecodingState, Step
from ..format.generation_settings import GenerationSettings
from .logits_processors import LogitsProcessor, Row, choose, logits_processors

COMPACT_SHARE = 1 / 8
"""Finished rows leave a batch once they are this share of it: moving the remaining rows costs about
as much as one more step of the finished ones."""


@dataclass(frozen=True)
class Choice:
    """A token chosen for one row of a batch.

    Attributes:
        last: whether the row ends with it, as the end token or because its limit is reached
    """

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
    settings: GenerationSettings,
    end_tokens: Sequence[int],
    processors: Sequence[LogitsProcessor] = (),
) -> Iterator[Choice]:
    """Decode a batch, yielding every token as soon as it is known, rows in order within a step.

    Args:
        source: tokens, int64 [B, S], or features of audio, float32 [B, mel bins, frames]
        source_mask: [B, S], True at tokens
        prompt: [B, P], the decoder's first input, the start token first
        limits: the most tokens to generate for each row, including the end token
        end_tokens: the tokens that end a row
        processors: in addition to the processors of `settings`
    """
    forced = settings.forced_first_token_id
    sources: list[list[int]] = [[] for _ in limits]
    if settings.encoder_no_repeat_ngram_size:
        sources = [row[mask].tolist() for row, mask in zip(source, source_mask, strict=True)]
    # Without the forced token, which counts as a new one.
    rows = [Row(s, tokens) for s, tokens in zip(sources, prompt.tolist(), strict=True)]
    if forced is not None:
        prompt = np.pad(prompt, ((0, 0), (0, 1)), constant_values=forced)
    length = prompt.shape[1]
    capacity = max(length, length + max(limits) - (1 if forced is None else 2))
    with closing(backend.start(source, source_mask, prompt, capacity)) as state:
        yield from continue_greedy(state, rows, limits, settings, end_tokens, processors)


def continue_greedy(
    state: DecodingState,
    rows: Sequence[Row],
    limits: Sequence[int],
    settings: GenerationSettings,
    end_tokens: Sequence[int],
    processors: Sequence[LogitsProcessor] = (),
) -> Iterator[Choice]:
    """`greedy` from a state that exists already.

    Args:
        rows: new tokens are appended to theirs
    """
    inputs = np.arange(len(limits))  # which input each row of the state is
    running = np.ones(len(limits), np.bool_)
    limit = np.asarray(limits)
    prompt_length = len(rows[0].tokens)
    all_processors = (*logits_processors(settings, end_tokens, prompt_length), *processors)
    for count in range(1, max(limits) + 1):
        step = _step(state, count, [rows[i] for i in inputs.tolist()], settings, all_processors)
        at_limit = count >= limit[inputs]
        forced = settings.last_token(count)
        if forced is not None and at_limit.any():
            step = _force(step, at_limit, forced)
        last = at_limit.copy()
        for end in end_tokens:
            last |= step.tokens == end
        for i in np.flatnonzero(running):
            row, token = int(inputs[i]), int(step.tokens[i])
            rows[row].tokens.append(token)
            yield Choice(row, token, float(step.log_probabilities[i]), bool(last[i]))
        running &= ~last
        left = int(running.sum())
        if left == 0:
            return
        if len(inputs) - left >= max(1, COMPACT_SHARE * len(inputs)):
            keep = np.flatnonzero(running)
            state.keep(keep)
            inputs, running = inputs[keep], running[keep]


def _step(
    state: DecodingState,
    count: int,
    rows: Sequence[Row],
    settings: GenerationSettings,
    processors: Sequence[LogitsProcessor],
) -> Step:
    """The count-th new token of each row: forced, chosen by the graph, or chosen here."""
    if count == 1 and settings.forced_first_token_id is not None:
        forced = np.full(len(rows), settings.forced_first_token_id)
        return Step(forced, np.zeros(len(rows), np.float32))
    active = [processor for processor in processors if processor.active(count)]
    if not active:
        return state.step()
    return state.step_choosing(
        lambda logits: choose(logits, active, rows, settings.suppressed_token_ids)
    )


def _force(step: Step, where: NDArray[np.bool_], token_id: int) -> Step:
    """A forced token was not chosen, and therefore has no probability."""
    return Step(
        np.where(where, token_id, step.tokens),
        np.where(where, np.float32(0), step.log_probabilities),
    )
