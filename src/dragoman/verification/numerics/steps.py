"""Compares steps through the cache with one pass of the same bundle, along given tokens.

Both are the same function, whatever a quantizer did: a difference beyond rounding is a fault of
positions, caches or masks. Steps go through a full cache to its last position, from a single token
and from a prompt. Rows join a batch, and continue each other as beams do. The graph's own choice
must be the most probable token that may be chosen, with the log-probability of the logits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.runtime import Model
from dragoman.runtime.backends.interface import Prediction
from dragoman.runtime.decoding.request import pad
from dragoman.runtime.format.parity import NOT_FINITE, Check

from ..checks.distances import differences, divergence
from ..tolerances import Slack, Tally
from .probes import Probe, batch_of

Array = NDArray[Any]

MOST_STEPS = 256
"""Steps from the first position on; the last ones of a longer cache are reached from a prompt."""
LAST_STEPS = 16
LATER, STEPS_JOINED = 3, 10
"""Steps after which a row joins a batch, and until which the batch is stepped."""
MOST_LOGITS = 2**26
"""Numbers among the one-pass logits that are kept: fewer rows are stepped where there are more."""
PROMPT_LOGITS = 2**25
"""Logits of all positions of prompts that are read together."""
MOST_READ = 2e10
"""Weights that are read by all steps from the first position on, which take as long as that."""
SCORE_TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
"""Nats between the log-probability of a choice and that of the logits, by their number format."""
SUPPRESSED = -1e4


@dataclass
class _Outcome:
    suppressed: Sequence[int]
    slack: Slack
    steps: Tally = field(default_factory=Tally)
    """The steps of all rows, compared with one pass."""
    choices: Tally = field(default_factory=Tally)
    """The choices of the graph and their log-probabilities, compared with its logits."""
    divergences: list[float] = field(default_factory=list)
    """From one pass, in nats, where distributions are compared."""


def compare_steps(
    model: Model,
    probes: Sequence[Probe],
    joining: Sequence[Probe],
    suppressed: Sequence[int],
    slack: Slack,
    parameters: int,
) -> tuple[Check, Check]:
    """Step a bundle along the targets of probes.

    Args:
        probes: the longest first
        joining: short probes; the second one joins the first later
    """
    found, most = _Outcome(suppressed, slack), most_steps(parameters)
    rows = _Rows.of(model, _rows_that_fit(model, probes, most), most)
    longest = rows.read.shape[1]
    _step(model, rows, 1, most, found)
    if longest > 2:
        _step(model, rows, max(2, longest - LAST_STEPS), longest, found)
    short = _Rows.of(model, joining, most)
    _step_joined(model, short, found)
    _step_beams(model, short, found)
    mean = float(np.mean(found.divergences)) if found.divergences else 0.0
    excess, problem = mean / slack.mean, ""
    if excess > 1:
        problem = (
            f"steps through the cache are {mean:.3g} nats from one pass on average; rounding "
            f"explains {slack.mean:.3g}"
        )
    found.steps.add(0, 0, excess, problem)
    return found.steps.check("steps", "cached steps"), found.choices.check("scores", "choices")


def most_steps(parameters: int) -> int:
    """Count the steps from the first position on of a model with so many parameters."""
    return min(MOST_STEPS, max(2 * LAST_STEPS, int(MOST_READ / max(1, parameters))))


def _rows_that_fit(model: Model, probes: Sequence[Probe], steps: int) -> Sequence[Probe]:
    vocabulary = model.manifest.model.target_vocab_size
    longest = min(max(len(probe.read) for probe in probes), steps + LAST_STEPS + 1)
    rows = max(1, MOST_LOGITS // (longest * vocabulary))
    return probes[: min(rows, model.backend.limits.rows or rows)]


@dataclass(frozen=True)
class _Rows:
    probes: Sequence[Probe]
    source: Array
    source_mask: NDArray[np.bool_]
    read: NDArray[np.int64]
    lengths: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Positions that may be stepped, [R]."""
    one_pass: Array
    """Their logits [B, R, V]."""

    @classmethod
    def of(cls, model: Model, probes: Sequence[Probe], steps: int) -> _Rows:
        """Score probes at their first `steps` positions, their last one, and those of the end."""
        spec = model.manifest.model
        source, mask = batch_of(probes, spec, model.backend.limits.source_multiple)
        read, read_mask = pad([probe.read for probe in probes], spec.pad_token_id)
        lengths, places = read_mask.sum(axis=1), np.arange(read.shape[1])
        ends = (places >= read.shape[1] - LAST_STEPS - 1) | np.isin(places, lengths - 1)
        positions = places[(places < steps) | ends]
        one_pass = model.backend.score(source, mask, read, positions)
        return cls(probes, source, mask, read, lengths, positions, one_pass)

    def logits(self, row: int, position: int) -> Array:
        """Return the logits [V] of one pass at a position."""
        place = int(np.searchsorted(self.positions, position))
        assert self.positions[place] == position
        found: Array = self.one_pass[row, place]
        return found


def _step(model: Model, rows: _Rows, prompt: int, most: int, found: _Outcome) -> None:
    given = np.minimum(prompt, rows.lengths)
    numbers = np.arange(len(given))
    if model.manifest.model.has_encoder:  # all prompts are of the same length
        numbers = numbers[rows.lengths >= prompt]
    at_once = max(1, PROMPT_LOGITS // (prompt * model.manifest.model.target_vocab_size))
    for first in range(0, len(numbers), at_once):
        own = numbers[first : first + at_once]
        read, position = rows.read[own], given[own] - 1
        state = model.backend.start(
            rows.source[own],
            rows.source_mask[own],
            read[:, : int(given[own].max())],
            read.shape[1],
            prompt_lengths=None if model.manifest.model.has_encoder else given[own],
        )
        with contextlib.closing(state):
            for step in range(most):
                _compare_rows(state.advance(), rows, own, position, found)
                position = position + 1
                if not (position < rows.lengths[own]).any() or step + 1 == most:
                    break
                following = np.minimum(position, read.shape[1] - 1)
                state.feed(np.take_along_axis(read, following[:, None], 1)[:, 0])
        del state  # frees its buffers before the next one needs as much


def _step_joined(model: Model, rows: _Rows, found: _Outcome) -> None:
    """Step a batch that another row joins later, so that its rows are at different positions."""
    numbers = np.flatnonzero(rows.lengths > LATER + 1)[:2]
    if len(numbers) < 2 or model.backend.limits.rows == 1:
        return
    states = [
        model.backend.start(
            rows.source[[n]], rows.source_mask[[n]], rows.read[[n], :1], rows.read.shape[1]
        )
        for n in numbers
    ]
    position = np.zeros(1, np.int64)
    try:
        for step in range(int(rows.lengths[numbers].min())):
            if step == LATER:  # both have read their first token
                states[1].advance()
                states[1].feed(rows.read[numbers[1:], 1])
                states[0].join(states.pop(), np.array([1]))
                position = np.append(position, 1)
            alive = numbers[: len(position)]
            _compare_rows(states[0].advance(), rows, alive, position, found)
            position = position + 1
            if step == STEPS_JOINED or (position >= rows.lengths[alive]).any():
                return
            states[0].feed(rows.read[alive, position])
    finally:
        for state in states:
            state.close()


def _step_beams(model: Model, rows: _Rows, found: _Outcome) -> None:
    """Step two rows of a source, of which one reads a wrong token and then continues the other."""
    if model.backend.limits.rows == 1:
        return
    length = min(int(rows.lengths[0]), STEPS_JOINED)
    first, capacity = rows.read[:1, :1], rows.read.shape[1]
    state = model.backend.start(rows.source[:1], rows.source_mask[:1], first, capacity, 2)
    both, after = np.zeros(2, np.int64), rows.lengths[[0, 0]]
    with contextlib.closing(state):
        for step in range(length):
            right = step % 2  # the row that has read the target
            position = np.where(both + np.arange(2) == right, step, after)
            _compare_rows(state.advance(), rows, both, position, found)
            if step + 1 == length:
                return
            state.reorder(both + right)
            token = int(rows.read[0, step + 1])
            other = (token + 1) % model.manifest.model.target_vocab_size
            state.feed(np.array([other, token] if right == 0 else [token, other]))


def _compare_rows(
    prediction: Prediction,
    rows: _Rows,
    numbers: NDArray[np.intp],
    position: NDArray[np.int64],
    found: _Outcome,
) -> None:
    for row in np.flatnonzero(position < rows.lengths[numbers]).tolist():
        at, probe = int(position[row]), int(numbers[row])
        logits, choice = prediction.logits[row], prediction.choice
        _compare(logits, rows.logits(probe, at), rows.probes[probe], at, found)
        chosen = int(choice.tokens[row]), float(choice.log_probabilities[row])
        _compare_choice(logits, *chosen, str(rows.one_pass.dtype), at, found)


def _compare(step: Array, one_pass: Array, probe: Probe, position: int, found: _Outcome) -> None:
    slack = found.slack
    wide, expected = step.astype(np.float32), one_pass.astype(np.float32)
    if slack.channels is not None:
        apart = differences(wide, expected)
        excess = float((apart / slack.channels).max())
        what = f"logits differ by {apart.max():.3g}"
    else:
        nats = float(divergence(torch.from_numpy(expected)[None], torch.from_numpy(wide)[None])[0])
        found.divergences.append(nats)
        excess = nats / slack.largest
        what = f"distributions are {nats:.3g} nats apart"
    problem = (
        f"a step through the cache is not one pass: {what} at position {position} of "
        f"{len(probe.read)}, {excess:.3g} times what rounding explains"
    )
    found.steps.add(1, excess > 1, excess, problem if excess > 1 else "")


def _compare_choice(
    logits: Array, token: int, log_probability: float, dtype: str, position: int, found: _Outcome
) -> None:
    allowed = logits.astype(np.float64)
    allowed[list(found.suppressed)] += SUPPRESSED
    best = int(allowed.argmax())
    shifted = allowed - allowed.max()
    exact = float(-np.log(np.exp(shifted).sum()))
    apart = abs(log_probability - exact)
    excess = apart / SCORE_TOLERANCE.get(dtype, 1e-2) if np.isfinite(apart) else NOT_FINITE
    problem = ""
    if not 0 <= token < len(logits) or allowed[token] < allowed[best]:
        problem = (
            f"the graph chooses token {token} at position {position}, the best of its logits is "
            f"{best}"
        )
    elif excess > 1:
        problem = (
            f"the log-probability of a choice is {log_probability:.4f} at position {position}, "
            f"expected {exact:.4f} by its logits"
        )
    found.choices.add(1, bool(problem), excess, problem)
