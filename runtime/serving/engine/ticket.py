"""A request on its way through the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dragoman.errors import DragomanError

from ...backends.errors import BackendError
from ...decoding.loop import Decoding, Job
from ...decoding.results import Result
from ...decoding.scheduling import Failed
from ...decoding.search import Draft
from ...decoding.streaming import Choice
from ...front_end import Pending

Outcome = TypeVar("Outcome")
Listener = Callable[[Sequence[Choice]], None]
"""Called with the tokens that are new, on the thread that decodes: it must return at once."""


class DeadlineError(DragomanError):
    """A request was not done in time."""


@dataclass
class Times:
    """When things happened, in seconds of `time.monotonic`; None: not yet.

    Attributes:
        begun: the first of its jobs joined a batch
        first: its first token was chosen
    """

    submitted: float
    begun: float | None = None
    first: float | None = None


class Ticket(Generic[Outcome]):
    """What becomes of a request.

    Attributes:
        future: its result, or why there is none; set by the engine. Whoever does not want it any
            more cancels it: what was decoded is left at the next step.
        deadline: in seconds of `time.monotonic`; None: there is none

    Args:
        since: when it arrived, likewise; None: now
    """

    def __init__(self, *, deadline: float | None = None, since: float | None = None) -> None:
        self.future: Future[Outcome] = Future()
        self.times = Times(time.monotonic() if since is None else since)
        self.deadline = deadline

    def is_over(self, now: float) -> bool:
        """Whether nothing more should be done for it; it fails if its time is up."""
        if self.deadline is not None and now >= self.deadline:
            seconds = self.deadline - self.times.submitted
            self.fail(DeadlineError(f"the request was not done within {seconds:.3g} s"))
        return self.future.done()

    def succeed(self, outcome: Outcome) -> None:
        with suppress(InvalidStateError):  # it may have been cancelled
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class DecodingTicket(Ticket[Result]):
    """A request that is decoded.

    Args:
        pending: what it needs
        listener: is told of each new token; of one output only
    """

    def __init__(
        self,
        pending: Pending,
        *,
        deadline: float | None = None,
        since: float | None = None,
        listener: Listener | None = None,
    ) -> None:
        super().__init__(deadline=deadline, since=since)
        self._pending, self._listener = pending, listener
        self._told: list[int] = []
        """What the listener knows of the output that is being decoded."""
        if listener is not None and pending.given:
            listener([Choice(token, 0.0) for token in pending.given])

    @property
    def jobs(self) -> list[Job[Entry]]:
        """Those that can be decoded at first."""
        return [self._as_entry(job) for job in self._pending.jobs]

    def tell(self, draft: Draft) -> None:
        """Tell the listener what is new in an output.

        Raises:
            DragomanError: it is not what the listener was told before: what was decoded had to be
                decoded again, with other random numbers.
        """
        if self.times.first is None and draft.count:
            self.times.first = time.monotonic()
        if self._listener is None:
            return
        tokens, told = draft.row.tokens[draft.begin :], len(self._told)
        if tokens[:told] != self._told:
            raise DragomanError("the output was lost in a failure, after a part of it was told")
        if len(tokens) > told:
            chances = draft.log_probabilities[told:]
            self._told = tokens
            self._listener([Choice(*new) for new in zip(tokens[told:], chances, strict=True)])

    def add(self, number: int, outcome: Decoding[Any] | Failed[Any]) -> Job[Entry] | None:
        """Take what has become of a job; the one that follows it, if there is one. What the backend
        cannot do is no fault of the request: it fails, instead of having a result that says so.
        """
        if self.future.done():
            return None
        if isinstance(outcome, Failed):
            self.fail(BackendError(outcome.reason))
            return None
        try:
            if self._listener is not None:
                for draft in outcome.drafts[:1]:
                    self.tell(draft)
            found = self._pending.add(number, outcome)
        except Exception as error:  # whatever is wrong with one request, others go on
            self.fail(error)
            return None
        if isinstance(found, Job):
            self._told = []
            return self._as_entry(found)
        if found is not None:
            self.succeed(found)
        return None

    def _as_entry(self, job: Job[int]) -> Job[Entry]:
        return Job(Entry(self, job.key), job.request, job.strategy)


@dataclass(frozen=True, eq=False)
class Entry:
    """The key of a job: one of a ticket's."""

    ticket: DecodingTicket
    number: int
