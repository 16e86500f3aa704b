"""The scheduler, which groups jobs into batches and isolates failing jobs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from ..arguments import StopCheck, never_stopped
from ..backends.interface import Backend, BackendError, DeviceLostError
from ..format.model_spec import ModelSpec
from .running_batch import IDLE_SHARE, DecodedJob, Job, Key, RunningBatch


@dataclass(frozen=True)
class FailedJob(Generic[Key]):
    """A job that failed in a batch of its own."""

    job: Job[Key]
    error: Exception


class Observer:
    """Receives the events of a scheduler on the decoding thread, and must return quickly."""

    def encoded(self, sources: int, seconds: float) -> None:
        """Called after sources were admitted to a batch, and encoded unless they were before."""

    def stepped(self, rows: int, seconds: float) -> None:
        """Called after a batch decoded one token for each of `rows` rows in use."""

    def failed(self, reason: str) -> None:
        """Called after a batch failed."""


@dataclass
class _Group(Generic[Key]):
    """Jobs that share batches: all jobs of a scheduler, or isolated jobs."""

    most: int
    """Known limit of rows in use, from the option and from failures for lack of memory."""
    waiting: deque[Job[Key]] = field(default_factory=deque)
    batches: dict[int, RunningBatch[Key]] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        """The number of rows in use."""
        return sum(batch.width * batch.count for batch in list(self.batches.values()))

    @property
    def done(self) -> bool:
        """Whether no job is waiting or running."""
        return not self.waiting and all(batch.empty for batch in self.batches.values())


class Scheduler(Generic[Key]):
    """Decodes jobs with continuous batching.

    A library adds jobs to the scheduler's own queue and calls `run`. A server has its own queue,
    passes jobs to `admit` and calls `step`.

    If a batch fails, its jobs are isolated: they are decoded again in halves, until each failing
    job has a batch of its own. All other jobs wait meanwhile. If new jobs cannot be encoded while
    others are running, for example out of memory, they wait. A lost device raises DeviceLostError.

    Args:
        rows: maximum number of rows in use; a wider job has a batch of its own
        tokens: maximum number of source positions in a batch, including padding, for jobs of the
            scheduler's own queue; a longer source has a batch of its own
        capacity: minimum number of target positions of a row; larger jobs have more
        retry: whether the jobs of a failed batch are decoded together once more before they are
            halved, in case the failure was transient
        put_back: receives jobs that were passed to `admit` and must wait; None: add them to the
            scheduler's own queue
    """

    def __init__(
        self,
        backend: Backend,
        model: ModelSpec,
        *,
        rows: int,
        tokens: int,
        capacity: int = 0,
        retry: bool = False,
        put_back: Callable[[Sequence[Job[Key]]], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._backend, self._model = backend, model
        self._rows, self._tokens, self._capacity, self._retry = rows, tokens, capacity, retry
        self._put_back, self._observer = put_back, observer or Observer()
        self._groups: list[_Group[Key]] = [_Group(rows)]
        """The group of all jobs, then the isolated groups; the last is decoded first."""

    @property
    def busy(self) -> int:
        """The number of rows in use."""
        return sum(group.busy for group in list(self._groups))

    @property
    def most(self) -> int:
        """The known limit of rows in use, from the option and from failures for lack of memory."""
        return self._groups[0].most

    @property
    def isolating(self) -> bool:
        """Whether jobs of a failed batch are being isolated."""
        return len(self._groups) > 1

    @property
    def running(self) -> list[DecodedJob[Key]]:
        """The jobs in batches."""
        return [
            decoded
            for group in self._groups
            for batch in group.batches.values()
            for decoded in batch.running
        ]

    @property
    def jobs(self) -> list[Job[Key]]:
        """All unfinished jobs."""
        waiting = [job for group in self._groups for job in group.waiting]
        return [*waiting, *(decoded.job for decoded in self.running)]

    def add(self, job: Job[Key]) -> None:
        """Add a job to the scheduler's own queue, which `run` processes in order.

        Jobs whose source is encoded come first, since much memory waits with them.
        """
        waiting = self._groups[0].waiting
        (waiting.appendleft if job.request.is_encoded else waiting.append)(job)

    def run(self, check: StopCheck = never_stopped) -> Iterator[DecodedJob[Key] | FailedJob[Key]]:
        """Decode all jobs in the queue; yield each when it is finished or has failed.

        More can be added meanwhile. If `check` stops the call, unfinished jobs are lost.
        """
        try:
            while self.isolating or not self._groups[0].done:
                check()
                for outcome in self.step():
                    if isinstance(outcome, FailedJob) and not _is_expected(outcome.error):
                        raise outcome.error
                    yield outcome
        finally:
            self.close()

    def admit(self, jobs: Sequence[Job[Key]]) -> Sequence[DecodedJob[Key] | FailedJob[Key]]:
        """Encode jobs of one width together and add them to its batch, unless isolating."""
        return self._admit(self._groups[0], jobs)

    def step(self) -> Iterator[DecodedJob[Key] | FailedJob[Key]]:
        """Admit jobs from the scheduler's own queue, and decode one token of every running job."""
        group = self._groups[-1]
        self._drop_drained(group)
        jobs = self._next(group)
        if jobs:
            yield from self._admit(group, jobs)
        for batch in [*group.batches.values()]:
            if group is self._groups[-1] and not batch.empty:
                yield from self._step(group, batch)
        while self.isolating and self._groups[-1].done:
            self._groups.pop()

    def evict(self, unwanted: Callable[[Job[Key]], bool]) -> None:
        """Remove unwanted jobs from batches and from the scheduler's own queues."""
        for group in self._groups:
            if group.waiting:
                group.waiting = deque(job for job in group.waiting if not unwanted(job))
            for batch in group.batches.values():
                for decoded in batch.running:
                    if unwanted(decoded.job):
                        batch.cancel(decoded)
            self._drop_drained(group)

    def close(self) -> None:
        """Release all batches; unfinished jobs are lost."""
        groups, self._groups = self._groups, [_Group(self._rows)]
        for group in groups:
            for batch in group.batches.values():
                batch.close()

    def _drop_drained(self, group: _Group[Key]) -> None:
        for width, batch in list(group.batches.items()):
            if batch.empty and not (group.waiting and batch.takes(group.waiting[0])):
                del group.batches[width]
        if not group.batches:
            group.most = self._rows

    def _next(self, group: _Group[Key]) -> list[Job[Key]]:
        """Take the jobs to admit now from the queue: none until enough rows are free.

        Only jobs of one width are decoded at a time.
        -
        """
        waiting = group.waiting
        if not waiting:
            return []
        batch = next(iter(group.batches.values()), None)
        width = waiting[0].strategy.width if batch is None else batch.width
        running = [] if batch is None else batch.running
        most = max(1, group.most // width)
        free = most - len(running)
        if free <= 0 or (running and free < min(len(waiting), most * IDLE_SHARE)):
            return []
        longest = max((source_length(decoded.job, self._model) for decoded in running), default=0)
        jobs: list[Job[Key]] = []
        while waiting and len(jobs) < free:
            job = waiting[0]
            longest = max(longest, source_length(job, self._model))
            fits = (len(running) + len(jobs) + 1) * longest <= self._tokens
            first_of_all = not running and not jobs
            # Only such jobs are admitted all or none.
            first = jobs[0].request if jobs and self._model.has_encoder else job.request
            alike = first.read_at_once == job.request.read_at_once
            takes = job.strategy.width == width if batch is None else batch.takes(job)
            if not takes or not (fits or first_of_all) or not alike:
                break
            jobs.append(waiting.popleft())
        return jobs

    def _admit(
        self, group: _Group[Key], jobs: Sequence[Job[Key]]
    ) -> Sequence[DecodedJob[Key] | FailedJob[Key]]:
        """Add jobs of one width to its batch; on failure, they wait or are isolated."""
        width = jobs[0].strategy.width
        batch = group.batches.get(width)
        if batch is None:
            batch = group.batches[width] = self._new_batch(group, width, jobs)
        started = time.monotonic()
        try:
            finished = batch.admit(jobs)
        except DeviceLostError:
            raise
        except Exception as caught:
            error = _forgotten(caught)
        else:
            self._observer.encoded(len(jobs), time.monotonic() - started)
            return finished
        if batch.empty:
            del group.batches[width]
        if not _is_expected(error) or not group.busy:
            return self._isolate(jobs, error, only=batch.tried == 1)
        group.most = group.busy
        if self._put_back is None or group is not self._groups[0]:
            group.waiting.extendleft(reversed(jobs))
        else:
            self._put_back(jobs)
        return []

    def _new_batch(
        self, group: _Group[Key], width: int, jobs: Sequence[Job[Key]]
    ) -> RunningBatch[Key]:
        capacity = max(
            job.request.capacity for job in (*jobs, *group.waiting) if job.strategy.width == width
        )
        if group is self._groups[0]:
            capacity = max(capacity, self._capacity)
        return RunningBatch(self._backend, self._model, width=width, capacity=capacity)

    def _step(
        self, group: _Group[Key], batch: RunningBatch[Key]
    ) -> Sequence[DecodedJob[Key] | FailedJob[Key]]:
        rows, started = batch.width * batch.count, time.monotonic()
        try:
            batch.compact()
            finished = batch.step()
        except DeviceLostError:
            raise
        except Exception as caught:
            error = _forgotten(caught)
        else:
            self._observer.stepped(rows, time.monotonic() - started)
            return finished
        jobs = [decoded.job for decoded in batch.running]
        del group.batches[batch.width]
        batch.close()
        if _is_expected(error) and not self.isolating:
            self._observer.failed(str(error))
        return self._isolate(jobs, error, only=batch.tried == 1)

    def _isolate(
        self, jobs: Sequence[Job[Key]], error: Exception, *, only: bool
    ) -> list[FailedJob[Key]]:
        if not _is_expected(error):
            self._observer.failed(f"{type(error).__name__}: {error}")
            parts = [[job] for job in jobs]
            only = len(jobs) == 1
        elif self._retry and not self.isolating:
            parts, only = [[*jobs]], False
        else:
            middle = (len(jobs) + 1) // 2
            parts = [part for part in ([*jobs[:middle]], [*jobs[middle:]]) if part]
        if only:
            return [FailedJob(jobs[0], error)]
        self._groups += [_Group(self._rows, deque(part)) for part in reversed(parts)]
        return []


def source_length(job: Job[Key], model: ModelSpec) -> int:
    """Return the number of source positions of a job; of prompt tokens if decoder-only."""
    source = job.request.source
    if not model.has_encoder:
        return job.request.read_at_once
    return len(source) if isinstance(source, list) else model.max_source_positions


def _is_expected(error: Exception) -> bool:
    """Return whether an error is one that backends raise; other exceptions are bugs."""
    return isinstance(error, BackendError)


def _forgotten(error: Exception) -> Exception:
    """Copy an error without its traceback, which would keep the memory of GPU sessions in use."""
    if isinstance(error, BackendError | MemoryError):
        return BackendError(str(error) or "not enough memory")
    return error
