"""A worker over a backend without a model, driven step by step in this thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.runtime.backends.interface import DeviceLostError
from dragoman.runtime.decoding.greedy_and_sampling import Greedy
from dragoman.runtime.decoding.results import Result
from dragoman.runtime.decoding.running_batch import DecodedJob, Job
from dragoman.runtime.decoding.scheduler import FailedJob, Observer
from dragoman.runtime.decoding.search import Strategy
from dragoman.runtime.serving.engine.request_handle import DecodingHandle, Listener, QueuedRequest
from dragoman.runtime.serving.engine.request_queue import RequestQueue
from dragoman.runtime.serving.engine.worker import Worker

from ...runtime.decoding.scripted import ScriptedBackend, request, spec

VOCABULARY = 13


class PendingTokens:
    """An input whose result is the tokens of its best outputs.

    Args:
        following: jobs that follow one another, like the windows of a recording
    """

    prefix: Sequence[int] = ()

    def __init__(self, jobs: Sequence[Job[int]], following: Sequence[Job[int]] = ()) -> None:
        self.jobs, self._following = jobs, list(following)
        self._open = len(jobs)
        self._tokens: dict[int, tuple[int, ...]] = {}

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Result | Sequence[Job[int]]:
        if isinstance(outcome, FailedJob):
            return Result("", (), 0.0, "rejected", str(outcome.error))
        sequence = outcome.sequences[0]
        before = self._tokens.get(number, ())
        self._tokens[number] = (*before, *sequence.row.tokens[sequence.begin :])
        if self._following:
            return [self._following.pop(0)]
        self._open -= 1
        if self._open:
            return ()
        tokens = tuple(token for _, each in sorted(self._tokens.items()) for token in each)
        return Result(None, tokens, 0.0, "end")


@dataclass
class RecordingObserver(Observer):
    """Records what the scheduler does."""

    encodings: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def encoded(self, sources: int, seconds: float) -> None:
        self.encodings.append(sources)

    def stepped(self, rows: int, seconds: float) -> None:
        self.rows.append(rows)

    def failed(self, reason: str) -> None:
        self.failures.append(reason)


class ScriptedEngine:
    """A worker in this thread: `run` returns when nothing is left to do.

    Args:
        before_step: called with the number of each step, from 1, before it is done
    """

    def __init__(
        self,
        backend: ScriptedBackend,
        *,
        rows: int = 8,
        waiting: int = 1000,
        before_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.backend, self.observer, self.steps = backend, RecordingObserver(), 0
        self.queue: RequestQueue[Job[QueuedRequest]] = RequestQueue(
            waiting, [rows], lambda job, now: job.key.handle.is_over(now)
        )
        fail_at = backend.fail_at

        def count(rows: int) -> None:
            self.steps += 1
            before_step(self.steps)
            fail_at(rows)

        backend.fail_at = count
        self.worker = Worker(
            0, backend, spec(VOCABULARY), self.queue, self.observer, rows=rows, capacity=40
        )

    def submit(
        self,
        *jobs: Job[int],
        following: Sequence[Job[int]] = (),
        listener: Listener | None = None,
        seconds: float | None = None,
    ) -> DecodingHandle:
        pending = PendingTokens(jobs, following)
        handle = DecodingHandle(pending, listener=listener, seconds=seconds)
        self.queue.put([(job, job.strategy.width) for job in handle.jobs])
        return handle

    def run(self, *, close: bool = True) -> None:
        """Decode all requests, including those that come meanwhile.

        Args:
            close: whether the queue is closed now; else something closes it at a step
        """
        if close:
            self.queue.close()
        self.worker.run()
        assert self.backend.open_states == 0


def job(
    source: Sequence[int],
    limit: int = 6,
    strategy: Strategy | None = None,
    number: int = 0,
    **more: Any,
) -> Job[int]:
    return Job(number, request(list(source), limit, **more), strategy or Greedy())


def endless(limit: int, source: Sequence[int] = (3,)) -> Job[int]:
    """A job that takes exactly this many steps."""
    return job(source, limit, ends=())


def tokens(handle: DecodingHandle) -> tuple[int, ...]:
    """The tokens of a finished request."""
    result = handle.future.result(timeout=0)
    assert result.error is None, result.error
    return result.tokens


LOST = DeviceLostError("the device is lost")
