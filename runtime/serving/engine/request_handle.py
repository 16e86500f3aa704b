"""Handles of requests, whose results an engine sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dragoman.errors import DragomanError

from ...arguments import DeadlineError
from ...decoding.results import Result
from ...decoding.running_batch import DecodedJob, Job, SelectedToken, selected_tokens
from ...decoding.scheduler import FailedJob
from ...decoding.search import TokenSequence

Outcome = TypeVar("Outcome")
Listener = Callable[[Sequence[SelectedToken]], None]
"""Receives new tokens. It is called on the thread that decodes, so it must return at once."""


class Pending(Protocol):
    """An input with one job, several at once, or several one after another."""

    @property
    def jobs(self) -> Sequence[Job[int]]:
        """The first jobs to decode, numbered from 0."""

    @property
    def prefix(self) -> Sequence[int]:
        """The tokens that the output begins with."""

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Result | Sequence[Job[int]]:
        """Add the outcome of a job; return further jobs, or the result after the last one."""


@dataclass
class Times:
    """The times of a request's events, in seconds of `time.monotonic`; None: not yet."""

    submitted: float
    begun: float | None = None
    """When the first job of the request joined a batch."""
    first: float | None = None
    """When the first token was selected."""


class RequestHandle(Generic[Outcome]):
    """The handle of a request, whose result an engine sets.

    Attributes:
        future: the result or an error; cancelling it evicts the request at the next step
        deadline: seconds of `time.monotonic`; None: unlimited
        finished: finished results of a request that is stopped, by index

    Args:
        since: when the request arrived, in seconds of `time.monotonic`; None: now
    """

    def __init__(self, *, seconds: float | None = None, since: float | None = None) -> None:
        self.future: Future[Outcome] = Future()
        self.times = Times(time.monotonic() if since is None else since)
        self.seconds = seconds
        self.deadline = None if seconds is None else self.times.submitted + seconds
        self.finished: dict[int, Any] = {}

    @property
    def has_succeeded(self) -> bool:
        """Whether the request has its result."""
        future = self.future
        return future.done() and not future.cancelled() and future.exception() is None

    def is_unneeded(self, now: float) -> bool:
        """Return whether the request has ended or is late."""
        return self.future.done() or (self.deadline is not None and now >= self.deadline)

    def is_over(self, now: float) -> bool:
        """Return whether the request needs no more work; fail it if it is late."""
        if self.deadline is not None and now >= self.deadline:
            message = f"the request was not done within {self.seconds:.3g} s"
            self.fail(DeadlineError(message, self.finished))
        return self.future.done()

    def succeed(self, outcome: Outcome) -> None:
        """Set the result, unless the request is over."""
        with suppress(InvalidStateError):
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Set an error, unless the request is over."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class DecodingHandle(RequestHandle[Result]):
    """The handle of a request that is decoded.

    Args:
        listener: receives each new token; for requests with one output
    """

    def __init__(
        self,
        pending: Pending,
        *,
        seconds: float | None = None,
        since: float | None = None,
        listener: Listener | None = None,
    ) -> None:
        super().__init__(seconds=seconds, since=since)
        self._pending, self._listener = pending, listener
        self._sent: list[int] = []
        """The tokens of the present output that the listener has received."""
        if listener is not None and pending.prefix:
            listener([SelectedToken(token, 0.0) for token in pending.prefix])

    @property
    def jobs(self) -> list[Job[QueuedRequest]]:
        """The jobs that can be decoded first."""
        return [self._queued(job) for job in self._pending.jobs]

    def notify(self, sequence: TokenSequence) -> None:
        """Send the new tokens of an output to the listener.

        Raises:
            DragomanError: the output was decoded again after a failure and differs from what was
                sent.
        """
        if self.times.first is None and sequence.count:
            self.times.first = time.monotonic()
        if self._listener is None:
            return
        tokens, sent = sequence.row.tokens[sequence.begin :], len(self._sent)
        if tokens[:sent] != self._sent[: len(tokens)]:
            raise DragomanError("the output was lost in a failure, after a part of it was sent")
        if len(tokens) > sent:
            self._sent = tokens
            self._listener(selected_tokens(sequence, sent))

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Sequence[Job[QueuedRequest]]:
        """Add the outcome of a job, and return further jobs, if any.

        A failure of the backend fails the request.
        """
        if self.future.done():
            return ()
        if isinstance(outcome, FailedJob):
            self.fail(outcome.error)
            return ()
        try:
            if self._listener is not None:
                for sequence in outcome.sequences[:1]:
                    self.notify(sequence)
            found = self._pending.add(number, outcome)
        except Exception as error:  # a faulty request does not affect others
            self.fail(error)
            return ()
        if isinstance(found, Result):
            self.succeed(found)
            return ()
        self._sent = []
        return [self._queued(job) for job in found]

    def _queued(self, job: Job[int]) -> Job[QueuedRequest]:
        return Job(QueuedRequest(self, job.key), job.request, job.strategy)


@dataclass(frozen=True, eq=False)
class QueuedRequest:
    """A job in the request queue."""

    handle: DecodingHandle
    number: int
