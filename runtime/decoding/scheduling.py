"""A queue of jobs decoded in one batch, which is filled again as outputs end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from ..backends.errors import BackendError
from ..backends.interface import Backend
from ..format.model_spec import ModelSpec
from .loop import IDLE_SHARE, Decoding, DecodingLoop, Job, Key


@dataclass(frozen=True)
class Failed(Generic[Key]):
    """A job that the backend cannot do, even alone."""

    job: Job[Key]
    reason: str


class Queue(Generic[Key]):
    """Jobs that wait. More can be added while `outcomes` is iterated.

    Args:
        rows: the most rows in a batch; a job with more is decoded alone
        tokens: the most positions of sources in a batch, including padding; likewise
    """

    def __init__(self, backend: Backend, model: ModelSpec, *, rows: int, tokens: int) -> None:
        self._backend, self._model, self._rows, self._tokens = backend, model, rows, tokens
        self._waiting: deque[Job[Key]] = deque()

    def add(self, job: Job[Key]) -> None:
        self._waiting.append(job)

    def outcomes(self) -> Iterator[Decoding[Key] | Failed[Key]]:
        """Decode until nothing waits, the first jobs first: each when it has ended."""
        while self._waiting:
            yield from self._batch(self._waiting)

    def _batch(self, waiting: deque[Job[Key]]) -> Iterator[Decoding[Key] | Failed[Key]]:
        """Decode jobs of one width in one batch, until one does not fit into it."""
        first = waiting[0]
        width = first.strategy.width
        capacity = max(j.request.capacity for j in waiting if j.strategy.width == width)
        loop: DecodingLoop[Key] = DecodingLoop(
            self._backend, self._model, width=width, capacity=capacity
        )
        most = max(1, self._rows // width)
        tried = 0
        ended: list[Decoding[Key]]
        failure: str | None
        try:
            while True:
                group = self._next(waiting, loop, most)
                tried += len(group)
                try:
                    ended, failure = loop.admit(group), None
                except (BackendError, MemoryError) as error:
                    ended, failure = [], reason_of(error)
                yield from ended
                if failure and not loop.running:
                    yield from self._apart(group, failure, alone=tried == 1)
                    return
                if failure:
                    waiting.extendleft(reversed(group))
                    most = len(loop.running)  # no more than these, then
                running = loop.running
                if not running:
                    return
                try:
                    loop.compact()
                    ended, failure = loop.step(), None
                except (BackendError, MemoryError) as error:
                    loop.close()
                    ended, failure = [], reason_of(error)
                yield from ended
                if failure:
                    jobs = [decoding.job for decoding in running]
                    yield from self._apart(jobs, failure, alone=tried == 1)
                    return
        finally:
            loop.close()

    def _next(self, waiting: deque[Job[Key]], loop: DecodingLoop[Key], most: int) -> list[Job[Key]]:
        """The jobs that may join the loop now: none, unless they are a worthwhile number."""
        running = loop.running
        free = most - len(running)
        if not waiting or free <= 0 or (running and free < min(len(waiting), most * IDLE_SHARE)):
            return []
        widest = max((length_of(decoding.job, self._model) for decoding in running), default=0)
        group: list[Job[Key]] = []
        while waiting and len(group) < free:
            job = waiting[0]
            widest = max(widest, length_of(job, self._model))
            together = (len(running) + len(group) + 1) * widest <= self._tokens
            alone = not running and not group
            # Only these are admitted, or fail to be, together.
            first = group[0].request if group and not loop.ragged else job.request
            alike = first.read_at_once == job.request.read_at_once
            if not loop.takes(job) or not (together or alone) or not alike:
                break
            group.append(waiting.popleft())
        return group

    def _apart(
        self, jobs: Sequence[Job[Key]], reason: str, *, alone: bool
    ) -> Iterator[Decoding[Key] | Failed[Key]]:
        """After a failure, as for lack of memory, decode each half of the jobs on its own.

        Args:
            alone: whether the batch had no other jobs before
        """
        if alone:
            yield Failed(jobs[0], reason)
            return
        middle = (len(jobs) + 1) // 2
        for half in (jobs[:middle], jobs[middle:]):
            waiting = deque(half)
            while waiting:
                yield from self._batch(waiting)


def length_of(job: Job[Key], model: ModelSpec) -> int:
    """Positions of the source; of a prompt, if it is all there is."""
    source = job.request.source
    if not model.has_encoder:
        return job.request.read_at_once
    return len(source) if isinstance(source, list) else model.max_source_positions


def reason_of(error: Exception) -> str:
    """What went wrong. The exception itself must not outlive its handler: its traceback holds what
    failed, such as the sessions of a GPU, whose memory the next attempt needs.
    """
    return str(error) or "not enough memory"
