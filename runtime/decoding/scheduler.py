"""The scheduler: which jobs are decoded together, and which fail when a batch fails."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from ..backends.interface import Backend, BackendError, DeviceLostError
from ..format.model_spec import ModelSpec
from .running_batch import IDLE_SHARE, DecodedJob, Job, Key, RunningBatch


@dataclass(frozen=True)
class FailedJob(Generic[Key]):
    """A job that fails even in a batch of its own.

    Attributes:
        error: what the backend cannot do; or an exception that no backend raises, a defect
    """

    job: Job[Key]
    error: Exception


class Observer:
    """Receives what a scheduler does; this one ignores it.

    Methods are called on the thread that decodes, so they must return at once.
    """

    def encoded(self, sources: int, seconds: float) -> None:
        """Sources were encoded and joined a batch."""

    def stepped(self, rows: int, seconds: float) -> None:
        """A batch with this many rows in use decoded one token each."""

    def failed(self, reason: str) -> None:
        """A batch failed."""


@dataclass
class _Batch(Generic[Key]):
    """A running batch.

    Attributes:
        tried: number of jobs that it has admitted or failed to admit
    """

    width: int
    running: RunningBatch[Key]
    tried: int = 0


@dataclass
class _Group(Generic[Key]):
    """Jobs that share batches: all jobs of a scheduler, or some that are isolated.

    Attributes:
        waiting: jobs that are not in a batch yet
        most: the most rows in use that memory suffices for, as far as known
        batches: by width
    """

    most: int
    waiting: deque[Job[Key]] = field(default_factory=deque)
    batches: dict[int, _Batch[Key]] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        """The number of rows in use."""
        return sum(batch.width * batch.running.count for batch in list(self.batches.values()))

    @property
    def done(self) -> bool:
        """Whether no job is waiting or running."""
        return not self.waiting and all(batch.running.empty for batch in self.batches.values())


class Scheduler(Generic[Key]):
    """Decodes jobs in batches that they join and leave at any step (continuous batching).

    A library adds jobs to the scheduler's own queue and calls `run`. A server has a queue of its
    own: it passes jobs to `admit` and calls `step`.

    If a batch fails, its jobs are isolated: they are decoded again in halves, until each job that
    fails has a batch of its own; all other jobs wait meanwhile. If new jobs cannot be encoded while
    others are running, as for lack of memory, the new ones wait. A lost device is an exception.

    Args:
        rows: the most rows in use; a wider job has a batch of its own
        tokens: the most source positions in a batch, padding included; a longer source has a
            batch of its own. It applies to the scheduler's own queue.
        capacity: target positions of a row; rows of larger jobs have more
        retry: whether the jobs of a failed batch are decoded together once more before they are
            halved, in case the failure has passed
        put_back: receives jobs that were passed to `admit` and must wait; None: they are added to
            the scheduler's own queue
        observer: receives what the scheduler does
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
        """All jobs, and then the isolated groups, the last of which is decoded first."""

    @property
    def busy(self) -> int:
        """The number of rows in use."""
        return sum(group.busy for group in list(self._groups))

    @property
    def most(self) -> int:
        """The most rows in use that memory suffices for, as far as known."""
        return self._groups[0].most

    @property
    def isolating(self) -> bool:
        """Whether jobs of a failed batch are isolated."""
        return len(self._groups) > 1

    @property
    def running(self) -> list[DecodedJob[Key]]:
        """The jobs that are in a batch."""
        return [
            decoded
            for group in self._groups
            for batch in group.batches.values()
            for decoded in batch.running.running
        ]

    @property
    def jobs(self) -> list[Job[Key]]:
        """All jobs that are not finished."""
        waiting = [job for group in self._groups for job in group.waiting]
        return [*waiting, *(decoded.job for decoded in self.running)]

    def add(self, job: Job[Key]) -> None:
        """Add a job to the scheduler's own queue, which `run` decodes in order."""
        self._groups[0].waiting.append(job)

    def run(self) -> Iterator[DecodedJob[Key] | FailedJob[Key]]:
        """Decode all jobs that were added; more can be added meanwhile.

        Yields:
            each job when it is finished; a failed one has a `BackendError`

        Raises:
            DeviceLostError: the device failed for good.
        """
        try:
            while self.isolating or not self._groups[0].done:
                for outcome in self.step():
                    if isinstance(outcome, FailedJob) and not _is_expected(outcome.error):
                        raise outcome.error
                    yield outcome
        finally:
            self.close()

    def admit(self, jobs: Sequence[Job[Key]]) -> Sequence[DecodedJob[Key] | FailedJob[Key]]:
        """Encode jobs of one width together and add them to its batch, unless jobs are isolated.

        Returns:
            jobs that are finished already, or have failed

        Raises:
            DeviceLostError: the device failed for good.
        """
        return self._admit(self._groups[0], jobs)

    def step(self) -> Iterator[DecodedJob[Key] | FailedJob[Key]]:
        """Admit jobs from the scheduler's own queue, and decode one token of every running job.

        Yields:
            jobs that are finished with it, or have failed

        Raises:
            DeviceLostError: the device failed for good.
        """
        group = self._groups[-1]
        self._drop_drained(group)
        jobs = self._next(group)
        if jobs:
            yield from self._admit(group, jobs)
        for batch in [*group.batches.values()]:
            if group is self._groups[-1] and not batch.running.empty:
                yield from self._step(group, batch)
        while self.isolating and self._groups[-1].done:
            self._groups.pop()

    def evict(self, unwanted: Callable[[Job[Key]], bool]) -> None:
        """Remove unwanted jobs from batches and from the scheduler's own queues."""
        for group in self._groups:
            if group.waiting:
                group.waiting = deque(job for job in group.waiting if not unwanted(job))
            for batch in group.batches.values():
                for decoded in batch.running.running:
                    if unwanted(decoded.job):
                        batch.running.cancel(decoded)
            self._drop_drained(group)

    def close(self) -> None:
        """Release all batches; jobs that are not finished are lost."""
        groups, self._groups = self._groups, [_Group(self._rows)]
        for group in groups:
            for batch in group.batches.values():
                batch.running.close()

    def _drop_drained(self, group: _Group[Key]) -> None:
        """Drop batches without jobs, unless the next job of the queue can use them."""
        for width, batch in list(group.batches.items()):
            if batch.running.empty and not (
                group.waiting and batch.running.takes(group.waiting[0])
            ):
                del group.batches[width]
        if not group.batches:
            group.most = self._rows

    def _next(self, group: _Group[Key]) -> list[Job[Key]]:
        """Take the jobs that may join now from the queue.

        Jobs of one width are decoded at a time. None join unless they are a worthwhile number.
        """
        waiting = group.waiting
        if not waiting:
            return []
        batch = next(iter(group.batches.values()), None)
        width = waiting[0].strategy.width if batch is None else batch.width
        running = [] if batch is None else batch.running.running
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
            # Only these are admitted, or fail to be, together.
            first = jobs[0].request if jobs and self._model.has_encoder else job.request
            alike = first.read_at_once == job.request.read_at_once
            takes = job.strategy.width == width if batch is None else batch.running.takes(job)
            if not takes or not (fits or first_of_all) or not alike:
                break
            jobs.append(waiting.popleft())
        return jobs

    def _admit(
        self, group: _Group[Key], jobs: Sequence[Job[Key]]
    ) -> Sequence[DecodedJob[Key] | FailedJob[Key]]:
        """Add jobs of one width to its batch; without success they wait or are isolated."""
        width = jobs[0].strategy.width
        batch = group.batches.get(width)
        if batch is None:
            batch = group.batches[width] = self._new_batch(group, width, jobs)
        batch.tried += len(jobs)
        started = time.monotonic()
        try:
            finished = batch.running.admit(jobs)
        except DeviceLostError:
            raise
        except Exception as caught:
            error = _forgotten(caught)
        else:
            self._observer.encoded(len(jobs), time.monotonic() - started)
            return finished
        if batch.running.empty:
            del group.batches[width]
        if not _is_expected(error) or not group.busy:
            return self._isolate(jobs, error, only=batch.tried == 1)
        group.most = group.busy
        if self._put_back is None or group is not self._groups[0]:
            group.waiting.extendleft(reversed(jobs))
        else:
            self._put_back(jobs)
        return []

    def _new_batch(self, group: _Group[Key], width: int, jobs: Sequence[Job[Key]]) -> _Batch[Key]:
        capacity = max(
            job.request.capacity for job in (*jobs, *group.waiting) if job.strategy.width == width
        )
        if group is self._groups[0]:
            capacity = max(capacity, self._capacity)
        running: RunningBatch[Key] = RunningBatch(
            self._backend, self._model, width=width, capacity=capacity
        )
        return _Batch(width, running)

    def _step(
        self, group: _Group[Key], batch: _Batch[Key]
    ) -> Sequence[DecodedJob[Key] | FailedJob[Key]]:
        """Decode one token of every job of a batch."""
        rows, started = batch.width * batch.running.count, time.monotonic()
        try:
            batch.running.compact()
            finished = batch.running.step()
        except DeviceLostError:
            raise
        except Exception as caught:
            error = _forgotten(caught)
        else:
            self._observer.stepped(rows, time.monotonic() - started)
            return finished
        jobs = [decoded.job for decoded in batch.running.running]
        del group.batches[batch.width]
        batch.running.close()
        if _is_expected(error) and not self.isolating:
            self._observer.failed(str(error))
        return self._isolate(jobs, error, only=batch.tried == 1)

    def _isolate(
        self, jobs: Sequence[Job[Key]], error: Exception, *, only: bool
    ) -> list[FailedJob[Key]]:
        """Isolate the jobs of a failed batch: in halves, or one by one after a defect.

        Args:
            only: whether the batch never had another job
        """
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
    """Return the positions of a job's source; of its prompt, for a decoder-only model."""
    source = job.request.source
    if not model.has_encoder:
        return job.request.read_at_once
    return len(source) if isinstance(source, list) else model.max_source_positions


def _is_expected(error: Exception) -> bool:
    """Return whether backends raise an error; any other is a defect."""
    return isinstance(error, BackendError)


def _forgotten(error: Exception) -> Exception:
    """Return an error of a backend as a new exception, without a traceback.

    The traceback holds what failed, such as the sessions of a GPU, whose memory the next attempt
    needs.
    """
    if isinstance(error, BackendError | MemoryError):
        return BackendError(str(error) or "not enough memory")
    return error
