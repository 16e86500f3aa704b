"""The engine of an encoder alone: texts of several requests are read together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Thread
from typing import Any

from ...backends.errors import DeviceLostError
from ...encoding.running import MAX_BATCH_SIZE
from ...model import Model
from .line import Line
from .observer import Nobody, Observer
from .ticket import Ticket

ABILITIES = {
    "embeddings": "encode",
    "classify": "classify",
    "tag": "tag",
    "fill": "fill",
    "answer": "answer",
}
"""Of an encoder's front end: the method of `Model` that does the same."""


class TextsTicket(Ticket[list[Any]]):
    """A request for what an encoder alone makes of texts.

    Args:
        method: of `EncoderFrontEnd`
        options: its keywords
    """

    def __init__(
        self,
        method: str,
        sources: Sequence[Any],
        options: dict[str, Any],
        *,
        deadline: float | None = None,
        since: float | None = None,
    ) -> None:
        super().__init__(deadline=deadline, since=since)
        self.method, self.sources, self.options = method, sources, options

    def is_like(self, other: TextsTicket) -> bool:
        return (self.method, self.options) == (other.method, other.options)


class TextsEngine:
    """
    Args:
        model: an encoder alone, loaded with `engine.threads_of(loops, threads)`
        loops: how many batches are computed beside each other
        waiting: how many requests may wait; beyond that, they are refused
    """

    def __init__(
        self,
        model: Model,
        *,
        loops: int = 1,
        rows: int = MAX_BATCH_SIZE,
        waiting: int = 256,
        observer: Observer | None = None,
    ) -> None:
        self.model, self._rows = model, rows
        self._observer = observer or Nobody()
        self._lost: DeviceLostError | None = None
        self.line: Line[TextsTicket] = Line(waiting, loops, lambda ticket, now: ticket.is_over(now))
        self._threads = [
            Thread(target=self._run, args=(number,), name=f"encoding-{number}", daemon=True)
            for number in range(loops)
        ]
        for thread in self._threads:
            thread.start()

    def enter(self, ticket: TextsTicket) -> None:
        """Let a request wait for its turn.

        Raises:
            OverloadedError, ClosedError: see `Line.put`.
            DeviceLostError: the device failed for good.
        """
        if self._lost is not None:
            raise DeviceLostError(str(self._lost))
        self.line.put([(ticket, len(ticket.sources))])

    @property
    def alive(self) -> bool:
        return self._lost is None and all(thread.is_alive() for thread in self._threads)

    @property
    def rows(self) -> int:
        """None stay between two batches."""
        return 0

    def close(self) -> None:
        """See `Engine.close`."""
        self.line.close()
        for thread in self._threads:
            thread.join()
        self.model.close()

    def _run(self, number: int) -> None:
        while True:
            group = self.line.take(
                number,
                busy=0,
                most=self._rows,
                fits=lambda tickets: tickets[-1].is_like(tickets[0]),
            )
            if group is None:
                return
            now = time.monotonic()
            wanted = [ticket for ticket in group if not ticket.is_over(now)]
            for ticket in wanted:
                ticket.times.begun = now
            if wanted:
                self._compute(wanted)

    def _compute(self, tickets: Sequence[TextsTicket]) -> None:
        """One text that cannot be read has an error of its own."""
        sources = [source for ticket in tickets for source in ticket.sources]
        started = time.monotonic()
        try:
            found = getattr(self.model.encoder, tickets[0].method)(sources, **tickets[0].options)
        except Exception as error:  # of the device, or a defect
            self._observer.failed(f"{type(error).__name__}: {error}")
            if isinstance(error, DeviceLostError):
                self._lost = error
                self.line.close()
                tickets = [*tickets, *self.line.clear()]
            for ticket in tickets:
                ticket.fail(error)
            return
        self._observer.encoded(len(sources), time.monotonic() - started)
        first = 0
        for ticket in tickets:
            ticket.succeed(found[first : first + len(ticket.sources)])
            first += len(ticket.sources)
