"""A thread that decodes requests from the request queue."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from threading import Thread

from ...backends.interface import Backend, DeviceLostError
from ...decoding.running_batch import DecodedJob, Job
from ...decoding.scheduler import FailedJob, Observer, Scheduler, source_length
from ...decoding.strategies import DEFAULT_BATCH_TOKENS
from ...format.model_spec import ModelSpec
from .request_handle import QueuedRequest
from .request_queue import RequestQueue

MOST_LENGTH_RATIO = 1.5
"""Sources that are encoded together are at most this many times as long as the shortest."""
SHORT_SOURCE = 16
"""Sources of at most this many tokens are encoded together whatever their lengths."""

Jobs = Sequence[Job[QueuedRequest]]


class EngineThread(Thread):
    """A thread that works on the requests of a queue with a model."""

    lost: DeviceLostError | None = None
    """Why it cannot go on."""


class Worker(EngineThread):
    """Takes jobs from the request queue, decodes them, and sets the results of their requests.

    Args:
        rows: maximum rows in use; a wider job is decoded alone
        capacity: target positions of each row
    """

    def __init__(
        self,
        number: int,
        backend: Backend,
        model: ModelSpec,
        queue: RequestQueue[Job[QueuedRequest]],
        observer: Observer,
        *,
        rows: int,
        capacity: int,
    ) -> None:
        super().__init__(name=f"decoding-{number}", daemon=True)
        self._number, self.backend, self._model = number, backend, model
        self._queue, self._observer = queue, observer
        self._scheduler: Scheduler[QueuedRequest] = Scheduler(
            backend,
            model,
            rows=rows,
            tokens=DEFAULT_BATCH_TOKENS,
            capacity=capacity,
            retry=True,
            put_back=self._put_back,
            observer=observer,
        )

    @property
    def busy(self) -> int:
        """The number of rows in use."""
        return self._scheduler.busy

    def run(self) -> None:
        """Decode until the queue is closed and empty, or the device is lost."""
        scheduler = self._scheduler
        while self.lost is None:
            taken: Jobs | None = ()
            try:
                self._evict()
                if not scheduler.isolating:
                    taken = self._queue.take(
                        self._number, busy=scheduler.busy, most=scheduler.most, fits=self._fits
                    )
                if taken is None:
                    return
                self._admit(taken)
                self._settle(scheduler.step())
                self._notify()
            except DeviceLostError as error:
                self.lost = error
                self._observer.failed(str(error))
                self._fail_all([*(taken or ()), *self._queue.withdraw(self._number)], error)
            except Exception as error:  # a defect of the server
                self._observer.failed(f"{type(error).__name__}: {error}")
                self._fail_all(taken or (), error)

    def _evict(self) -> None:
        now = time.monotonic()
        self._scheduler.evict(lambda job: job.key.handle.is_over(now))

    def _admit(self, jobs: Jobs) -> None:
        batches = list(self._batches(jobs))
        for index, batch in enumerate(batches):
            if self._scheduler.isolating:
                self._put_back([job for rest in batches[index:] for job in rest])
                break
            self._settle(self._scheduler.admit(batch))
            self._notify()

    def _batches(self, jobs: Jobs) -> Iterator[Jobs]:
        """Yield batches of jobs without much padding."""
        now = time.monotonic()
        wanted = [job for job in jobs if not job.key.handle.is_over(now)]
        for job in wanted:
            times = job.key.handle.times
            times.begun = times.begun or now

        def kind(job: Job[QueuedRequest]) -> tuple[int, int]:
            read = job.request.read_at_once if self._model.has_encoder else 0
            return job.strategy.width, read

        for _, alike in groupby(sorted(wanted, key=kind), key=kind):
            batch: list[Job[QueuedRequest]] = []
            for job in sorted(alike, key=self._length):
                shortest = self._length(batch[0]) if batch else 0
                if batch and self._length(job) > max(SHORT_SOURCE, MOST_LENGTH_RATIO * shortest):
                    yield batch
                    batch = []
                batch.append(job)
            yield batch

    def _put_back(self, jobs: Jobs) -> None:
        self._queue.put_back([(job, job.strategy.width) for job in jobs])

    def _notify(self) -> None:
        for decoded in self._scheduler.running:
            if decoded.prefix:
                continue  # no new tokens during prefill
            handle = decoded.job.key.handle
            try:
                handle.notify(decoded.search.sequence)
            except Exception as error:
                handle.fail(error)

    def _settle(
        self, outcomes: Iterable[DecodedJob[QueuedRequest] | FailedJob[QueuedRequest]]
    ) -> None:
        for outcome in outcomes:
            queued = outcome.job.key
            for job in queued.handle.add(queued.number, outcome):
                # Much memory waits with an encoded source.
                first = job.request.is_encoded
                self._queue.put_following(job, job.strategy.width, is_first=first)

    def _fits(self, jobs: Jobs) -> bool:
        """Return whether jobs may be encoded between two steps."""
        most = self.backend.limits.encoded or DEFAULT_BATCH_TOKENS
        return sum(map(self._length, jobs)) <= most

    def _length(self, job: Job[QueuedRequest]) -> int:
        return source_length(job, self._model)

    def _fail_all(self, jobs: Jobs, error: Exception) -> None:
        jobs = [*jobs, *self._scheduler.jobs]
        self._scheduler.close()
        for job in jobs:
            job.key.handle.fail(error)
