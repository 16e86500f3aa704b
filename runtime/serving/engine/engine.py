"""The engine of a model that decodes: several loops over one copy of its weights."""

from __future__ import annotations

from typing import Any

from dragoman.errors import DragomanError

from ...backends.errors import DeviceLostError
from ...decoding.loop import Job
from ...decoding.options import DEFAULT_BATCH_SIZE, GenerationOptions
from ...decoding.results import Result
from ...decoding.streaming import only_strategy
from ...model import Model
from .line import Line
from .loop import LoopThread
from .observer import Nobody, Observer
from .ticket import DecodingTicket, Entry, Listener

MOST_OUTPUTS = 1024
"""Of a request."""
LONGEST_OUTPUT = 512
"""New tokens that a request may have unless the bundle's own default is more, or the server is told
otherwise: memory is set aside for each row."""


class Engine:
    """
    Args:
        model: one that decodes, loaded with `threads_of(loops, threads)`
        loops: how many batches are decoded beside each other
        rows: the most in the batch of a loop: requests, times their beams
        waiting: how many jobs may wait; beyond that, requests are refused
        max_new_tokens: what requests may ask for at most; None: see `LONGEST_OUTPUT`
    """

    def __init__(
        self,
        model: Model,
        *,
        loops: int = 1,
        rows: int = DEFAULT_BATCH_SIZE,
        waiting: int = 256,
        max_new_tokens: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.model = model
        limits = model.backend.limits
        self.max_new_tokens, self._capacity = _capacity(model, max_new_tokens)
        self._most_rows = min(rows, limits.rows or rows)
        self.line: Line[Job[Entry]] = Line(
            waiting, loops, lambda job, now: job.key.ticket.is_over(now)
        )
        self._threads = [
            LoopThread(
                number,
                model.backend,
                model.manifest.model,
                self.line,
                observer or Nobody(),
                rows=self._most_rows,
                capacity=self._capacity,
            )
            for number in range(loops)
        ]
        for thread in self._threads:
            thread.start()

    def prepare(
        self,
        source: Any,
        options: GenerationOptions,
        *,
        deadline: float | None = None,
        since: float | None = None,
        listener: Listener | None = None,
    ) -> DecodingTicket | Result:
        """Read an input: what takes time before it can be decoded. The result of one that is empty
        or cannot be decoded.

        Args:
            deadline, since: see `Ticket`
            listener: is told of every new token, end tokens too

        Raises:
            DragomanError: an option is out of range, not for this kind of model or not possible
                with a listener; more new tokens, outputs or rows are asked for than the server
                gives.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """
        if options.num_return_sequences > MOST_OUTPUTS:
            raise DragomanError(
                f"num_return_sequences: expected at most {MOST_OUTPUTS}, found "
                f"{options.num_return_sequences}"
            )
        pending = self.model.front_end.begin(source, self._limited(options))
        if isinstance(pending, Result):
            return pending
        width = max(job.strategy.width for job in pending.jobs)
        if width > self._most_rows:
            raise DragomanError(
                f"num_beams: expected at most {self._most_rows}, the rows of this server's batch, "
                f"found {width}"
            )
        if listener is not None:
            only_strategy([job.strategy for job in pending.jobs])
        if max(job.request.capacity for job in pending.jobs) > self._capacity:
            raise DragomanError(
                f"max_new_tokens: expected at most {self.max_new_tokens}, which this server gives"
            )
        return DecodingTicket(pending, deadline=deadline, since=since, listener=listener)

    def enter(self, *tickets: DecodingTicket) -> None:
        """Let all inputs of a request wait for their turn, or none.

        Raises:
            OverloadedError: too many wait.
            ClosedError: the engine is being closed.
            DeviceLostError: the device failed for good.
        """
        lost = next((t.lost for t in self._threads if t.lost is not None), None)
        if lost is not None:
            raise DeviceLostError(str(lost))
        jobs = [job for ticket in tickets for job in ticket.jobs]
        self.line.put([(job, job.strategy.width) for job in jobs])

    @property
    def alive(self) -> bool:
        """Whether requests can be decoded."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def rows(self) -> int:
        """Of all batches, in use."""
        return sum(thread.busy for thread in self._threads)

    def close(self) -> None:
        """Take no more requests, finish those that are there, and end the threads."""
        self.line.close()
        for thread in self._threads:
            thread.join()
        self.model.close()

    def _limited(self, options: GenerationOptions) -> GenerationOptions:
        """With the server's limit where the caller has none and the bundle's default is more."""
        if options.max_new_tokens is None:
            default = self.model.manifest.default_max_new_tokens
            if default > self.max_new_tokens:
                return options.replace(max_new_tokens=self.max_new_tokens)
        elif options.max_new_tokens > self.max_new_tokens:
            raise DragomanError(
                f"max_new_tokens: expected at most {self.max_new_tokens}, found "
                f"{options.max_new_tokens}"
            )
        return options


def threads_of(loops: int, threads: int) -> int:
    """How many threads a model must be loaded with for so many loops of so many threads each: loops
    compute in their own threads, and share the others.
    """
    return loops * (threads - 1) + 1


def _capacity(model: Model, max_new_tokens: int | None) -> tuple[int, int]:
    """The most new tokens of a request, and the target positions of a row that has them."""
    manifest = model.manifest
    positions = manifest.executable.capacity or manifest.model.max_target_positions
    most = max_new_tokens or max(LONGEST_OUTPUT, manifest.default_max_new_tokens)
    most = min(most, positions)
    if manifest.speech is not None or not manifest.model.has_encoder:
        return most, positions  # prompts are of any length
    return most, min(positions, 1 + len(manifest.generation.prompt) + most)
