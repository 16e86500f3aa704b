"""A running batch that admits and evicts requests at any step (continuous batching)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown

from ..arguments import StopCheck, never_stopped
from ..backends.interface import Backend, BackendError, DecodingState, Encoded
from ..format.contract import Slot
from ..format.model_spec import ModelSpec
from .request import EncoderInput, PrefixToken, Request, as_batch, pad
from .search import (
    SELECTED_TOKENS,
    RequiredOutputs,
    Search,
    StepScores,
    Strategy,
    TokenSequence,
)

Key = TypeVar("Key")

IDLE_SHARE = 1 / 8
"""Minimum idle share of a batch for dropping idle rows or giving them to new requests. Moving rows
costs about as much as one step of the idle rows, and encoding several sources together costs less
than one by one."""


@dataclass(frozen=True)
class Job(Generic[Key]):
    """A request and its decoding strategy."""

    key: Key
    request: Request
    strategy: Strategy


@dataclass(eq=False)
class DecodedJob(Generic[Key]):
    """A running or finished job."""

    job: Job[Key]
    search: Search
    prefix: deque[PrefixToken]
    """Unread tokens of the prefix, see `Request.prefix`."""
    selected: list[tuple[int, float]] = field(default_factory=list)
    """Selected tokens at prefix positions with several tokens, each with its probability among
    these."""
    observed: float | None = None
    """Probability of `Request.observed`; None until the prompt is read."""
    encoded: Mapping[Slot, NDArray[Any]] | None = None

    @property
    def sequences(self) -> list[TokenSequence]:
        """The outputs of a finished job, best first."""
        return self.search.outputs()


Slots = list[DecodedJob[Key] | None]
"""The job of each source of a batch; None for a free slot."""


class RunningBatch(Generic[Key]):
    """A batch of jobs of `width` rows each. `admit` and `step` may be called in any order."""

    def __init__(self, backend: Backend, model: ModelSpec, *, width: int, capacity: int) -> None:
        self._backend, self._model = backend, model
        self.width, self._capacity = width, capacity
        self.tried = 0
        """Number of jobs that were admitted or failed to be admitted."""
        self._state: DecodingState | None = None
        self._slots: Slots[Key] = []

    @property
    def running(self) -> list[DecodedJob[Key]]:
        """The unfinished jobs in the order of their slots."""
        return [decoded for decoded in self._slots if decoded is not None]

    @property
    def empty(self) -> bool:
        """Whether no job is running."""
        return self._state is None

    @property
    def count(self) -> int:
        """The number of unfinished jobs."""
        return len(self._slots) - self.idle

    @property
    def ragged(self) -> bool:
        """Whether jobs with prompts of different lengths can start together."""
        return not self._model.has_encoder

    @property
    def idle(self) -> int:
        """The number of free slots."""
        return self._slots.count(None)

    def takes(self, job: Job[Key]) -> bool:
        """Return whether a job has the width of this batch and fits in its capacity."""
        return job.strategy.width == self.width and job.request.capacity <= self._capacity

    def admit(self, jobs: Iterable[Job[Key]]) -> list[DecodedJob[Key]]:
        """Encode the sources of jobs and add them to the batch.

        A failure does not affect running jobs. Jobs with the same `Request.read_at_once` are
        admitted all or none; so are all jobs if the batch is `ragged`.
        """
        new = [
            DecodedJob(job, job.strategy.begin(job.request), deque(job.request.prefix))
            for job in jobs
        ]
        self.tried += len(new)
        finished = [decoded for decoded in new if decoded.search.finished]
        by_length: dict[int, list[DecodedJob[Key]]] = {}
        for decoded in new:
            if not decoded.search.finished:
                length = 0 if self.ragged else decoded.job.request.read_at_once
                by_length.setdefault(length, []).append(decoded)
        for group in by_length.values():
            finished += self._start(group)
        return finished

    def step(self) -> list[DecodedJob[Key]]:
        """Decode one token of every job. After a BackendError, the batch must be closed."""
        if self._state is None:
            return []
        finished = _advance(self._state, self._slots)
        self._close_if_empty()
        return finished

    def cancel(self, decoded: DecodedJob[Key]) -> None:
        """Remove an unfinished job."""
        if self._state is not None and decoded in self._slots:
            slot = self._slots.index(decoded)
            self._slots[slot] = None
            self._state.retire(np.array([slot]))
            self._close_if_empty()

    def compact(self) -> None:
        """Drop free slots if there are many."""
        if self._state is not None and self.idle >= max(1, IDLE_SHARE * len(self._slots)):
            self._slots = _drop_idle(self._state, self._slots)

    def close(self) -> None:
        """Release the batch; unfinished jobs are lost."""
        state, self._state = self._state, None
        self._slots = []
        if state is not None:
            state.close()

    def _close_if_empty(self) -> None:
        if self.idle == len(self._slots):
            self.close()

    def _start(self, group: Sequence[DecodedJob[Key]]) -> list[DecodedJob[Key]]:
        """Start a group and add it to the batch; return jobs that are already finished.

        A prompt of several tokens is read in one step, which also decodes the first new token.
        """
        tokens = [decoded.search.sequence.row.tokens for decoded in group]
        prompts, read = pad(tokens, self._model.pad_token_id)
        sources = [decoded.job.request.source for decoded in group]
        lists = (decoded.job.request.allowed for decoded in group)
        allowed = [tokens for tokens in lists if tokens is not None]
        if allowed and len(allowed) < len(group):
            raise ValueError("expected requests that all have a shortlist, or none")
        source, mask = self._batch_of(sources)
        state = self._backend.start(
            source, mask, prompts, self._capacity, self.width, read.sum(axis=1), allowed or None
        )
        slots: Slots[Key] = [*group]
        try:
            finished: list[DecodedJob[Key]] = []
            if prompts.shape[1] > 1:  # only states that read one token per step can join
                finished = _advance(state, slots)
                if len(finished) == len(slots):
                    return finished
                if finished:
                    slots = _drop_idle(state, slots)
            if self._state is not None:
                self._join(self._state, state, slots)
                return finished
            self._state, self._slots = state, slots
            return finished
        finally:
            if state is not self._state:
                state.close()

    def _batch_of(
        self, sources: Sequence[EncoderInput | Encoded]
    ) -> tuple[NDArray[Any] | Encoded, NDArray[np.bool_]]:
        """Return a batch of sources and its mask; if some are encoded, the others are, too."""
        new = [source for source in sources if not isinstance(source, Mapping)]
        multiple = self._backend.limits.source_multiple
        if len(new) == len(sources):
            return as_batch(new, self._model, multiple)
        each = [
            source
            if isinstance(source, Mapping)
            else self._backend.encode(*as_batch([source], self._model, multiple))
            for source in sources
        ]
        mask = np.ones((len(sources), self._model.max_source_positions), np.bool_)  # of audio
        return {name: np.concatenate([one[name] for one in each]) for name in each[0]}, mask

    def _join(self, present: DecodingState, state: DecodingState, slots: Slots[Key]) -> None:
        free = [slot for slot, decoded in enumerate(self._slots) if decoded is None]
        beyond = range(len(self._slots), len(self._slots) + len(slots))
        taken = [*free, *beyond][: len(slots)]
        present.join(state, np.array(taken))
        self._slots += [None] * (max(taken) + 1 - len(self._slots))
        for slot, decoded in zip(taken, slots, strict=True):
            self._slots[slot] = decoded


@dataclass(frozen=True)
class SelectedToken:
    """A token that was selected for an output."""

    token: int
    log_probability: float
    is_end: bool = False


def selected_tokens(sequence: TokenSequence, first: int) -> list[SelectedToken]:
    """Return the new tokens of a sequence from number `first` on, counted from 0."""
    last = sequence.count - 1 if sequence.end_token is not None else None
    tokens = sequence.row.tokens[sequence.begin + first :]
    return [
        SelectedToken(token, sequence.log_probabilities[number], number == last)
        for number, token in enumerate(tokens, first)
    ]


def only_strategy(strategies: Sequence[Strategy]) -> Strategy:
    """Return the strategy of a single output, or raise an error if tokens are not final at once."""
    strategy, *others = strategies
    if others:
        raise DragomanError(f"num_return_sequences: expected 1 to stream, found {len(strategies)}")
    if strategy.width > 1:
        raise DragomanError(
            f"num_beams: expected 1 to stream, found {shown(strategy.width)}: tokens of beams are "
            "not final until the end"
        )
    return strategy


def stream_tokens(
    backend: Backend, model: ModelSpec, job: Job[Key], check: StopCheck = never_stopped
) -> Iterator[SelectedToken]:
    """Decode one job of width 1, and yield every new token as soon as it is selected."""
    batch: RunningBatch[Key] = RunningBatch(backend, model, width=1, capacity=job.request.capacity)
    with closing(batch):
        check()
        finished = batch.admit([job])
        sequence = (finished or batch.running)[0].search.sequence
        yielded = 0
        while True:
            for selected in selected_tokens(sequence, yielded):
                yielded += 1
                yield selected
            if finished:
                return
            check()
            finished = batch.step()


def _drop_idle(state: DecodingState, slots: Slots[Key]) -> Slots[Key]:
    left = len(slots) - slots.count(None)
    later = [slot for slot in range(left, len(slots)) if slots[slot] is not None]
    keep = [slot if slots[slot] is not None else later.pop() for slot in range(left)]
    state.keep(np.array(keep, np.intp))
    return [slots[slot] for slot in keep]


def _advance(state: DecodingState, slots: Slots[Key]) -> list[DecodedJob[Key]]:
    required = [_required_outputs(decoded) for decoded in slots if decoded is not None]
    if all(outputs == SELECTED_TOKENS for outputs in required):
        scores = StepScores(state.step())
        _check_finite(scores, slots)
        width = scores.rows // len(slots)
        for slot, decoded in enumerate(slots):
            if decoded is not None:
                decoded.search.advance(scores, slot * width)
    else:
        prediction, count = state.advance(), max(outputs.candidates for outputs in required)
        candidates = prediction.candidates(count) if count else None
        scores = StepScores(prediction.choice, prediction, candidates)
        _check_finite(scores, slots)
        _feed(state, slots, scores)
    return _retire(state, slots)


def _check_finite(scores: StepScores, slots: Slots[Key]) -> None:
    """Check the log-probabilities of selected tokens, which any infinite or NaN logit affects."""
    width = scores.rows // len(slots)
    for slot, decoded in enumerate(slots):
        if decoded is not None and not scores.is_finite(slot * width, width):
            raise BackendError("the model's logits are not finite numbers")


def _required_outputs(decoded: DecodedJob[Key]) -> RequiredOutputs:
    """Return the outputs of a step that a job requires.

    Reading its prefix requires all logits, as does a probability after its prompt.
    """
    required = RequiredOutputs() if decoded.prefix else decoded.search.required_outputs()
    reads = bool(decoded.prefix) or _to_observe(decoded) is not None
    return required._replace(logits=required.logits or reads)


def _to_observe(decoded: DecodedJob[Key]) -> int | None:
    return decoded.job.request.observed if decoded.observed is None else None


def _feed(state: DecodingState, slots: Slots[Key], scores: StepScores) -> None:
    width = scores.rows // len(slots)
    tokens, parents = np.zeros(scores.rows, np.int64), np.arange(scores.rows)
    for slot, decoded in enumerate(slots):
        if decoded is None:
            continue
        row = slot * width
        observed = _to_observe(decoded)
        if observed is not None:
            decoded.observed = math.exp(scores.logit(row, observed) - scores.normalizer(row))
        if decoded.prefix:
            tokens[row : row + width] = _next_of_prefix(decoded, scores, row)
            continue
        following = decoded.search.advance(scores, row)
        tokens[row : row + width] = following.tokens
        if following.parents is not None:
            parents[row : row + width] = np.asarray(following.parents) + row
    if (parents != np.arange(scores.rows)).any():
        state.reorder(parents)
    state.feed(tokens)


def _next_of_prefix(decoded: DecodedJob[Key], scores: StepScores, row: int) -> int:
    token = decoded.prefix.popleft()
    if not isinstance(token, int):
        ids = np.sort(np.asarray(token))
        logits = scores.logits(row, 1)[0, ids]
        token, powers = int(ids[logits.argmax()]), np.exp(logits - logits.max())
        decoded.selected.append((token, float(1 / powers.sum())))
    decoded.search.sequence.append_prefix(token)
    return token


def _retire(state: DecodingState, slots: Slots[Key]) -> list[DecodedJob[Key]]:
    ended = [(n, job) for n, job in enumerate(slots) if job is not None and job.search.finished]
    for slot, decoded in ended:  # before any job leaves the batch, since there may be no memory
        keeps_encoded = decoded.job.request.keeps_encoded
        if keeps_encoded is not None and keeps_encoded(decoded):
            decoded.encoded = state.encoded_source(slot)
    for slot, _ in ended:
        slots[slot] = None
    if ended:
        state.retire(np.array([slot for slot, _ in ended]))
    return [decoded for _, decoded in ended]
