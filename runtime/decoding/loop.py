"""The decoding loop: a batch that requests enter and leave at any step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from ..backends.errors import BackendError
from ..backends.interface import Backend, DecodingState
from ..format.model_spec import ModelSpec
from .batching import as_batch, pad
from .request import Given, Request
from .search import NOTHING, ChosenOutlook, Draft, Need, Outlook, Search, Strategy

Key = TypeVar("Key")

IDLE_SHARE = 1 / 8
"""Sources that have ended leave a batch, or others take their places, once they are this share of
it: moving the remaining rows costs about as much as one more step of the idle ones, and encoding
several sources at once costs less than one by one."""


@dataclass(frozen=True)
class Job(Generic[Key]):
    """A request, and how its output is searched for.

    Attributes:
        key: the caller's name for it
    """

    key: Key
    request: Request
    strategy: Strategy


@dataclass(eq=False)
class Decoding(Generic[Key]):
    """A job in the loop.

    Attributes:
        given: what the decoder is still to be given, see `Request.given`
        found: the tokens that were chosen where several were given
    """

    job: Job[Key]
    search: Search
    given: deque[Given]
    found: list[int] = field(default_factory=list)

    @property
    def drafts(self) -> list[Draft]:
        """The outputs, best first, once it has ended."""
        return self.search.outputs()


Slots = list[Decoding[Key] | None]
"""The requests of a batch by source; None where one has ended."""


class DecodingLoop(Generic[Key]):
    """A batch. `admit` and `step` may be called in any order.

    Args:
        width: rows of each request: those of its strategy
        capacity: target positions of a row: at least those of every request
    """

    def __init__(self, backend: Backend, model: ModelSpec, *, width: int, capacity: int) -> None:
        self._backend, self._model = backend, model
        self._width, self._capacity = width, capacity
        self._state: DecodingState | None = None
        self._slots: Slots[Key] = []

    @property
    def running(self) -> list[Decoding[Key]]:
        """The requests that have not ended, in the order of their places in the batch."""
        return [decoding for decoding in self._slots if decoding is not None]

    @property
    def ragged(self) -> bool:
        """Whether requests with different numbers of tokens to begin with start together."""
        return not self._model.has_encoder

    @property
    def idle(self) -> int:
        """How many requests can be admitted without the batch growing."""
        return self._slots.count(None)

    def takes(self, job: Job[Key]) -> bool:
        """Whether a job has the width of this batch, and its positions suffice."""
        return job.strategy.width == self._width and job.request.capacity <= self._capacity

    def admit(self, jobs: Iterable[Job[Key]]) -> list[Decoding[Key]]:
        """Encode sources and let them join the batch. If that fails, those that are running go on
        unharmed. Of several jobs all are admitted or none, if they all have the same
        `Request.read_at_once`, or `ragged`.

        Returns:
            those that have ended already

        Raises:
            BackendError, MemoryError: the backend failed, as for lack of memory.
        """
        new = [
            Decoding(job, job.strategy.begin(job.request), deque(job.request.given)) for job in jobs
        ]
        ended = [decoding for decoding in new if decoding.search.finished]
        by_length: dict[int, list[Decoding[Key]]] = {}
        for decoding in new:
            if not decoding.search.finished:
                length = 0 if self.ragged else decoding.job.request.read_at_once
                by_length.setdefault(length, []).append(decoding)
        for group in by_length.values():
            ended += self._start(group)
        return ended

    def step(self) -> list[Decoding[Key]]:
        """Decode one token of every request.

        Returns:
            those that have ended with it

        Raises:
            BackendError: the backend failed, or the model's logits are not finite numbers. The
                loop must be closed.
        """
        if self._state is None:
            return []
        ended = _advance(self._state, self._slots)
        self._close_if_empty()
        return ended

    def cancel(self, decoding: Decoding[Key]) -> None:
        """Let a request leave before it has ended."""
        if self._state is not None and decoding in self._slots:
            place = self._slots.index(decoding)
            self._slots[place] = None
            self._state.retire(np.array([place]))
            self._close_if_empty()

    def compact(self) -> None:
        """Drop the places of requests that have ended, if they are many."""
        if self._state is not None and self.idle >= max(1, IDLE_SHARE * len(self._slots)):
            self._slots = _drop_idle(self._state, self._slots)

    def close(self) -> None:
        """Release the batch; requests that have not ended are lost."""
        state, self._state = self._state, None
        self._slots = []
        if state is not None:
            state.close()

    def _close_if_empty(self) -> None:
        if self.idle == len(self._slots):
            self.close()

    def _start(self, group: Sequence[Decoding[Key]]) -> list[Decoding[Key]]:
        """Start a group, with prompts of one length unless `ragged`, and let it join those that are
        running. A prompt of several tokens is read at once, and the first token decoded.
        """
        tokens = [d.search.draft.row.tokens for d in group]
        prompts, read = pad(tokens, self._model.pad_token_id)
        sources = [d.job.request.source for d in group]
        source, mask = as_batch(sources, self._model, self._backend.limits.source_multiple)
        state = self._backend.start(
            source, mask, prompts, self._capacity, self._width, read.sum(axis=1)
        )
        slots: Slots[Key] = [*group]
        try:
            ended: list[Decoding[Key]] = []
            if prompts.shape[1] > 1:  # states are joined that read one token at a time
                ended = _advance(state, slots)
                if len(ended) == len(slots):
                    return ended
                if ended:
                    slots = _drop_idle(state, slots)
            if self._state is not None:
                self._join(self._state, state, slots)
                return ended
            self._state, self._slots = state, slots
            return ended
        finally:
            if state is not self._state:
                state.close()

    def _join(self, present: DecodingState, state: DecodingState, slots: Slots[Key]) -> None:
        free = [place for place, decoding in enumerate(self._slots) if decoding is None]
        beyond = range(len(self._slots), len(self._slots) + len(slots))
        places = [*free, *beyond][: len(slots)]
        present.join(state, np.array(places))
        self._slots += [None] * (max(places) + 1 - len(self._slots))
        for place, decoding in zip(places, slots, strict=True):
            self._slots[place] = decoding


def _drop_idle(state: DecodingState, slots: Slots[Key]) -> Slots[Key]:
    """Fill the places of requests that have ended with the last ones; the places that remain."""
    left = len(slots) - slots.count(None)
    later = [place for place in range(left, len(slots)) if slots[place] is not None]
    keep = [place if slots[place] is not None else later.pop() for place in range(left)]
    state.keep(np.array(keep, np.intp))
    return [slots[place] for place in keep]


def _advance(state: DecodingState, slots: Slots[Key]) -> list[Decoding[Key]]:
    """Decode one token of every request of a batch; those that have ended are None afterwards.

    Raises:
        BackendError: the backend failed, or the model's logits are not finite numbers.
    """
    needs = [_need(decoding) for decoding in slots if decoding is not None]
    if all(need == NOTHING for need in needs):
        outlook: Outlook = ChosenOutlook(state.step())
        _check_finite(outlook, slots)
        width = outlook.rows // len(slots)
        for place, decoding in enumerate(slots):
            if decoding is not None:
                decoding.search.advance(outlook, place * width)
    else:
        outlook = Outlook(state.advance(), max(need.candidates for need in needs))
        _check_finite(outlook, slots)
        _feed(state, slots, outlook)
    return _retire(state, slots)


def _check_finite(outlook: Outlook, slots: Slots[Key]) -> None:
    """A logit that is not a number, or infinite, makes the probability of every choice of its row
    no number.

    Raises:
        BackendError: there is one in a row in use.
    """
    width = outlook.rows // len(slots)
    for place, decoding in enumerate(slots):
        if decoding is not None and not outlook.is_finite(place * width, width):
            raise BackendError("the model's logits are not finite numbers")


def _need(decoding: Decoding[Key]) -> Need:
    """While a request is given tokens, it must not be fed the graph's choice."""
    return Need(logits=True) if decoding.given else decoding.search.need()


def _feed(state: DecodingState, slots: Slots[Key], outlook: Outlook) -> None:
    """Let every request choose its next tokens, and feed them to its rows."""
    width = outlook.rows // len(slots)
    tokens, parents = np.zeros(outlook.rows, np.int64), np.arange(outlook.rows)
    for place, decoding in enumerate(slots):
        if decoding is None:
            continue
        row = place * width
        if decoding.given:
            tokens[row : row + width] = _give(decoding, outlook, row)
            continue
        continuation = decoding.search.advance(outlook, row)
        tokens[row : row + width] = continuation.tokens
        if continuation.parents is not None:
            parents[row : row + width] = np.asarray(continuation.parents) + row
    if (parents != np.arange(outlook.rows)).any():
        state.reorder(parents)
    state.feed(tokens)


def _give(decoding: Decoding[Key], outlook: Outlook, row: int) -> int:
    """The next token that a request is given."""
    given = decoding.given.popleft()
    if isinstance(given, int):
        token = given
    else:
        ids = np.sort(np.asarray(given))
        token = int(ids[outlook.logits(row, 1)[0, ids].argmax()])
        decoding.found.append(token)
    decoding.search.draft.give(token)
    return token


def _retire(state: DecodingState, slots: Slots[Key]) -> list[Decoding[Key]]:
    """Take those that have ended out of the batch."""
    ended: list[Decoding[Key]] = []
    places = []
    for place, decoding in enumerate(slots):
        if decoding is not None and decoding.search.finished:
            ended.append(decoding)
            places.append(place)
            slots[place] = None
    if places:
        state.retire(np.array(places))
    return ended
