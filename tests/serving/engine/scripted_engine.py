"""A loop of the engine over a backend without a model, driven step by step in this thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.runtime.backends.errors import DeviceLostError
from dragoman.runtime.decoding.greedy import Greedy
from dragoman.runtime.decoding.loop import Decoding, Job
from dragoman.runtime.decoding.results import Result
from dragoman.runtime.decoding.scheduling import Failed
from dragoman.runtime.decoding.search import Strategy
from dragoman.runtime.serving.engine.line import Line
from dragoman.runtime.serving.engine.loop import LoopThread
from dragoman.runtime.serving.engine.ticket import DecodingTicket, Entry, Listener

from ...runtime.decoding.scripted import ScriptedBackend, request, spec

VOCABULARY = 13


class PendingTokens:
    """An input whose result is the tokens of its first hypotheses.

    Args:
        following: jobs one after another, as the windows of a recording are
    """

    given: Sequence[int] = ()

    def __init__(self, jobs: Sequence[Job[int]], following: Sequence[Job[int]] = ()) -> None:
        self.jobs, self._following = jobs, list(following)
        self._open = len(jobs)
        self._tokens: dict[int, tuple[int, ...]] = {}

    def add(self, number: int, outcome: Decoding[Any] | Failed[Any]) -> Result | Job[int] | None:
        if isinstance(outcome, Failed):
            return Result("", (), 0.0, "rejected", outcome.reason)
        draft = outcome.drafts[0]
        before = self._tokens.get(number, ())
        self._tokens[number] = (*before, *draft.row.tokens[draft.begin :])
        if self._following:
            return self._following.pop(0)
        self._open -= 1
        if self._open:
            return None
        tokens = tuple(token for _, each in sorted(self._tokens.items()) for token in each)
        return Result(None, tokens, 0.0, "end")


@dataclass
class Watch:
    """Notes what it is told."""

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
    """One loop whose thread is this one: `run` returns when nothing is left to do.

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
        self.backend, self.watch, self.steps = backend, Watch(), 0
        self.line: Line[Job[Entry]] = Line(waiting, 1, lambda job, now: job.key.ticket.is_over(now))
        fail_at = backend.fail_at

        def count(rows: int) -> None:
            self.steps += 1
            before_step(self.steps)
            fail_at(rows)

        backend.fail_at = count
        self.thread = LoopThread(
            0, backend, spec(VOCABULARY), self.line, self.watch, rows=rows, capacity=40
        )

    def submit(
        self,
        *jobs: Job[int],
        following: Sequence[Job[int]] = (),
        listener: Listener | None = None,
        deadline: float | None = None,
    ) -> DecodingTicket:
        pending = PendingTokens(jobs, following)
        ticket = DecodingTicket(pending, listener=listener, deadline=deadline)
        self.line.put([(job, job.strategy.width) for job in ticket.jobs])
        return ticket

    def run(self, *, close: bool = True) -> None:
        """Do all that waits and that comes meanwhile.

        Args:
            close: whether nothing comes from now on; else something closes the line at a step
        """
        if close:
            self.line.close()
        self.thread.run()
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
    """A job that takes exactly so many steps."""
    return job(source, limit, ends=())


def tokens(ticket: DecodingTicket) -> tuple[int, ...]:
    """Of a result that is there."""
    result = ticket.future.result(timeout=0)
    assert result.error is None, result.error
    return result.tokens


LOST = DeviceLostError("the device is lost")
