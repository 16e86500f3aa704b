"""A thread that decodes: a batch of rows for each width, which requests enter and leave at any
step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from threading import Thread

from ...backends.errors import BackendError, DeviceLostError
from ...backends.interface import Backend
from ...decoding.limits import DEFAULT_BATCH_TOKENS
from ...decoding.loop import Decoding, DecodingLoop, Job
from ...decoding.scheduling import Failed, Queue, length_of, reason_of
from ...format.model_spec import ModelSpec
from .line import Line
from .observer import Observer
from .ticket import Entry

LIKE = 1.5
"""Sources of a batch of the encoder are at most so many times as long as its shortest."""
SHORT = 16
"""But for those of up to so many tokens."""

Jobs = Sequence[Job[Entry]]


class LoopThread(Thread):
    """
    Args:
        number: which one of several
        rows: the most in all batches together; what needs more is decoded alone
        capacity: target positions of each row
        line: where it takes its jobs from, until that is closed and empty
    """

    def __init__(
        self,
        number: int,
        backend: Backend,
        model: ModelSpec,
        line: Line[Job[Entry]],
        observer: Observer,
        *,
        rows: int,
        capacity: int,
    ) -> None:
        super().__init__(name=f"decoding-{number}", daemon=True)
        self._number, self._backend, self._model = number, backend, model
        self._line, self._observer = line, observer
        self._rows, self._most, self._capacity = rows, rows, capacity
        self._loops: dict[int, DecodingLoop[Entry]] = {}
        """By width."""
        self.lost: DeviceLostError | None = None
        """Why it cannot go on."""

    @property
    def busy(self) -> int:
        """Rows in use."""
        return sum(width * len(loop.running) for width, loop in list(self._loops.items()))

    def run(self) -> None:
        while self.lost is None:
            busy = self.busy
            if not busy:
                self._most = self._rows  # whatever was short of memory is gone
            group = self._line.take(self._number, busy=busy, most=self._most, fits=self._fits)
            if group is None:
                return
            try:
                self._turn(group)
            except DeviceLostError as error:
                self._give_up(group, error)
            except Exception as error:  # a defect of this loop: whoever is here fails
                self._observer.failed(f"{type(error).__name__}: {error}")
                self._fail_all(group, error)

    def _turn(self, group: Jobs) -> None:
        self._let_go()
        for batch in self._batches(group):
            self._admit(batch)
        for width, loop in list(self._loops.items()):
            self._step(width, loop)

    def _let_go(self) -> None:
        """Those that have no time left or are not wanted any more leave."""
        now = time.monotonic()
        for loop in self._loops.values():
            for decoding in loop.running:
                if decoding.job.key.ticket.is_over(now):
                    loop.cancel(decoding)

    def _batches(self, group: Jobs) -> Iterator[Jobs]:
        """Jobs that can be encoded together without much padding; not those that are not wanted any
        more.
        """
        now = time.monotonic()
        wanted = [job for job in group if not job.key.ticket.is_over(now)]
        for job in wanted:
            times = job.key.ticket.times
            times.begun = times.begun or now

        def kind(job: Job[Entry]) -> tuple[int, int]:
            read = job.request.read_at_once if self._model.has_encoder else 0
            return job.strategy.width, read

        for _, alike in groupby(sorted(wanted, key=kind), key=kind):
            batch: list[Job[Entry]] = []
            for job in sorted(alike, key=self._length):
                shortest = self._length(batch[0]) if batch else 0
                if batch and self._length(job) > max(SHORT, LIKE * shortest):
                    yield batch
                    batch = []
                batch.append(job)
            yield batch

    def _admit(self, batch: Jobs) -> None:
        """Encode jobs and let them join the batch of their width. If that fails, they wait for what
        is running, or else are tried apart.
        """
        width = batch[0].strategy.width
        capacity = max(self._capacity, *(job.request.capacity for job in batch))
        loop = self._loops.get(width)
        if loop is None:
            loop = DecodingLoop(self._backend, self._model, width=width, capacity=capacity)
        started, failure = time.monotonic(), None
        try:
            ended = loop.admit(batch)
        except (BackendError, MemoryError) as error:
            failure = reason_of(error)
        except DeviceLostError:
            raise
        except Exception as error:
            self._each_alone(batch, error)
            return
        if failure is None:
            self._observer.encoded(len(batch), time.monotonic() - started)
            self._loops[width] = loop
            for decoding in loop.running:
                self._tell(decoding)
            self._settle(ended)
        elif self.busy:
            self._most = self.busy
            self._line.put_back([(job, width) for job in batch])
        else:
            self._apart(batch)

    def _step(self, width: int, loop: DecodingLoop[Entry]) -> None:
        running = loop.running
        started, failure = time.monotonic(), None
        try:
            loop.compact()
            ended = loop.step()
        except (BackendError, MemoryError) as error:
            failure = reason_of(error)
        except DeviceLostError:
            raise
        except Exception as error:
            self._leave(width)
            self._each_alone([decoding.job for decoding in running], error)
            return
        if failure is not None:
            self._leave(width)
            self._observer.failed(failure)
            self._apart([decoding.job for decoding in running])
            return
        self._observer.stepped(width * len(running), time.monotonic() - started)
        for decoding in loop.running:
            self._tell(decoding)
        self._settle(ended)
        if not loop.running:
            del self._loops[width]

    def _leave(self, width: int) -> None:
        """Give up the batch of a width."""
        self._loops.pop(width).close()

    def _apart(self, jobs: Jobs) -> None:
        """After a failure: together once more, then in halves, so that only those fail that fail by
        themselves. Others wait meanwhile.
        """
        queue: Queue[Entry] = Queue(
            self._backend, self._model, rows=self._rows, tokens=DEFAULT_BATCH_TOKENS
        )
        now = time.monotonic()
        left = {job.key: job for job in jobs if not job.key.ticket.is_over(now)}
        for job in left.values():
            queue.add(job)
        try:
            for outcome in queue.outcomes():
                del left[outcome.job.key]
                self._settle([outcome])
        except DeviceLostError as lost:
            _fail(left.values(), lost)
            raise
        except Exception as error:
            self._each_alone([*left.values()], error)

    def _each_alone(self, jobs: Jobs, error: Exception) -> None:
        """After an error that no backend raises, a defect: only whoever causes it fails."""
        self._observer.failed(f"{type(error).__name__}: {error}")
        if len(jobs) == 1:
            _fail(jobs, error)
            return
        try:
            for job in jobs:
                self._apart([job])
        except DeviceLostError as lost:
            _fail(jobs, lost)  # those that have ended are not affected
            raise

    def _tell(self, decoding: Decoding[Entry]) -> None:
        if decoding.given:
            return  # it is still being given what it begins with
        try:
            decoding.job.key.ticket.tell(decoding.search.draft)
        except Exception as error:
            decoding.job.key.ticket.fail(error)

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            entry = outcome.job.key
            following = entry.ticket.add(entry.number, outcome)
            if following is not None:
                self._line.put_following(following, following.strategy.width)

    def _fits(self, jobs: Jobs) -> bool:
        """Whether jobs may be encoded between two steps: running requests wait for it."""
        most = self._backend.limits.encoded or DEFAULT_BATCH_TOKENS
        return sum(map(self._length, jobs)) <= most

    def _length(self, job: Job[Entry]) -> int:
        return length_of(job, self._model)

    def _fail_all(self, group: Jobs, error: Exception) -> None:
        """Those of a group and all that are running."""
        running = [d.job for loop in self._loops.values() for d in loop.running]
        for loop in self._loops.values():
            loop.close()
        self._loops.clear()
        _fail((*group, *running), error)

    def _give_up(self, group: Jobs, error: DeviceLostError) -> None:
        self.lost = error
        self._observer.failed(str(error))
        self._line.close()
        self._fail_all([*group, *self._line.clear()], error)


def _fail(jobs: Iterable[Job[Entry]], error: Exception) -> None:
    for job in jobs:
        job.key.ticket.fail(error)


Outcome = Decoding[Entry] | Failed[Entry]
