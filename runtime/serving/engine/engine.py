"""The engine of a model that decodes: several workers share one copy of its weights."""

from __future__ import annotations

from typing import Any

from dragoman.errors import DragomanError
from dragoman.settings.generation import DEFAULT_BATCH_SIZE, GenerationOptions

from ...backends.interface import DeviceLostError
from ...decoding.results import Result
from ...decoding.running_batch import Job, only_strategy
from ...decoding.scheduler import Observer
from ...model import Model
from .request_handle import DecodingHandle, Listener, QueuedRequest
from .request_queue import RequestQueue
from .worker import Worker

MOST_OUTPUTS = 1024
"""The most outputs of a request."""
LONGEST_OUTPUT = 512
"""The most new tokens of a request unless the bundle's default is more or the server has another
limit: memory is set aside for each row."""


class DecodingEngine:
    """Decodes requests of a model in workers that share its weights.

    Args:
        model: a model that decodes, loaded with `threads_of(workers, threads)`
        workers: number of threads, each of which decodes its own batch
        batch_size: maximum rows in a worker's batch; a request has a row per beam
        max_waiting: maximum waiting jobs; further requests are refused
        max_new_tokens: maximum new tokens of a request; None: see `LONGEST_OUTPUT`
    """

    def __init__(
        self,
        model: Model,
        *,
        workers: int = 1,
        batch_size: int = DEFAULT_BATCH_SIZE,
        max_waiting: int = 256,
        max_new_tokens: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.model = model
        limits = model.backend.limits
        self.max_new_tokens, self._capacity = _capacity(model, max_new_tokens)
        self._batch_size = min(batch_size, limits.rows or batch_size)
        self.queue: RequestQueue[Job[QueuedRequest]] = RequestQueue(
            max_waiting, workers, lambda job, now: job.key.handle.is_over(now)
        )
        self._workers = [
            Worker(
                number,
                model.backend,
                model.manifest.model,
                self.queue,
                observer or Observer(),
                rows=self._batch_size,
                capacity=self._capacity,
            )
            for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    def prepare(
        self,
        source: Any,
        options: GenerationOptions,
        *,
        deadline: float | None = None,
        since: float | None = None,
        listener: Listener | None = None,
    ) -> DecodingHandle | Result:
        """Read an input and return its handle, or its result if it is empty or rejected.

        Args:
            deadline, since: see `RequestHandle`
            listener: receives every new token, including end tokens

        Raises:
            DragomanError: an option is out of range or not supported, or the request exceeds the
                server's limit of new tokens, outputs or rows.
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
        if width > self._batch_size:
            raise DragomanError(
                f"num_beams: expected at most {self._batch_size}, the rows of this server's batch, "
                f"found {width}"
            )
        if listener is not None:
            only_strategy([job.strategy for job in pending.jobs])
        if max(job.request.capacity for job in pending.jobs) > self._capacity:
            raise DragomanError(
                f"max_new_tokens: expected at most {self.max_new_tokens}, this server's limit"
            )
        return DecodingHandle(pending, deadline=deadline, since=since, listener=listener)

    def submit(self, *handles: DecodingHandle) -> None:
        """Add all inputs of a request to the queue, or none.

        Raises:
            OverloadedError: too many jobs wait.
            ClosedError: the engine is being closed.
            DeviceLostError: the device failed permanently.
        """
        lost = next((worker.lost for worker in self._workers if worker.lost is not None), None)
        if lost is not None:
            raise DeviceLostError(str(lost))
        jobs = [job for handle in handles for job in handle.jobs]
        self.queue.put([(job, job.strategy.width) for job in jobs])

    @property
    def alive(self) -> bool:
        """Whether the engine can decode requests."""
        return all(worker.is_alive() for worker in self._workers)

    @property
    def rows(self) -> int:
        """The number of rows in use, in all batches."""
        return sum(worker.busy for worker in self._workers)

    def close(self) -> None:
        """Refuse new requests, finish accepted ones, and end the threads."""
        self.queue.close()
        for worker in self._workers:
            worker.join()
        self.model.close()

    def _limited(self, options: GenerationOptions) -> GenerationOptions:
        """Apply the server's limit if the request has none and the bundle's default exceeds it."""
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


def threads_of(workers: int, threads: int) -> int:
    """Return the number of threads to load a model with.

    A worker computes in its own thread; the workers share the other threads.
    """
    return workers * (threads - 1) + 1


def _capacity(model: Model, max_new_tokens: int | None) -> tuple[int, int]:
    """Return the maximum new tokens of a request, and the target positions of its rows."""
    manifest = model.manifest
    positions = manifest.executable.capacity or manifest.model.max_target_positions
    most = max_new_tokens or max(LONGEST_OUTPUT, manifest.default_max_new_tokens)
    most = min(most, positions)
    if manifest.speech is not None or not manifest.model.has_encoder:
        return most, positions  # prompts have any length
    return most, min(positions, 1 + len(manifest.generation.prompt) + most)
