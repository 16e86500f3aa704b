"""The engine of an encoder-only model: inputs of several requests share batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Thread
from typing import Any

from ...backends.interface import DeviceLostError
from ...decoding.scheduler import Observer
from ...encoding.running import MAX_BATCH_SIZE
from ...model import Model
from .request_handle import RequestHandle
from .request_queue import RequestQueue

ABILITIES = {
    "embeddings": "encode",
    "classify": "classify",
    "tag": "tag",
    "fill": "fill",
    "answer": "answer",
}
"""The methods of `EncoderFrontEnd`, and the methods of `Model` that do the same."""


class EncoderHandle(RequestHandle[list[Any]]):
    """The handle of a request to an encoder-only model.

    Args:
        method: name of a method of `EncoderFrontEnd`
        options: keyword arguments of the method
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

    def is_like(self, other: EncoderHandle) -> bool:
        """Return whether both requests can be computed in one call."""
        return (self.method, self.options) == (other.method, other.options)


class EncoderEngine:
    """Encodes the inputs of requests in threads that share a model's weights.

    Args:
        model: an encoder-only model, loaded with `engine.threads_of(workers, threads)`
        workers: number of threads, each of which computes its own batches
        batch_size: maximum inputs in a batch
        max_waiting: maximum waiting requests; further ones are refused
    """

    def __init__(
        self,
        model: Model,
        *,
        workers: int = 1,
        batch_size: int = MAX_BATCH_SIZE,
        max_waiting: int = 256,
        observer: Observer | None = None,
    ) -> None:
        self.model, self._batch_size = model, batch_size
        self._observer = observer or Observer()
        self._lost: DeviceLostError | None = None
        self.queue: RequestQueue[EncoderHandle] = RequestQueue(
            max_waiting, workers, lambda handle, now: handle.is_over(now)
        )
        self._workers = [
            Thread(target=self._run, args=(number,), name=f"encoding-{number}", daemon=True)
            for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    def submit(self, handle: EncoderHandle) -> None:
        """Add a request to the queue.

        Raises:
            OverloadedError: too many requests wait.
            ClosedError: the engine is being closed.
            DeviceLostError: the device failed permanently.
        """
        if self._lost is not None:
            raise DeviceLostError(str(self._lost))
        self.queue.put([(handle, len(handle.sources))])

    @property
    def alive(self) -> bool:
        """Whether the engine can encode requests."""
        return self._lost is None and all(worker.is_alive() for worker in self._workers)

    @property
    def rows(self) -> int:
        """The number of rows in use; none stay between two batches."""
        return 0

    def close(self) -> None:
        """Refuse new requests, finish accepted ones, and end the threads."""
        self.queue.close()
        for worker in self._workers:
            worker.join()
        self.model.close()

    def _run(self, number: int) -> None:
        while True:
            group = self.queue.take(
                number,
                busy=0,
                most=self._batch_size,
                fits=lambda handles: handles[-1].is_like(handles[0]),
            )
            if group is None:
                return
            now = time.monotonic()
            wanted = [handle for handle in group if not handle.is_over(now)]
            for handle in wanted:
                handle.times.begun = now
            if wanted:
                self._compute(wanted)

    def _compute(self, handles: Sequence[EncoderHandle]) -> None:
        """Compute the results of requests; a rejected input has its own error."""
        sources = [source for handle in handles for source in handle.sources]
        started = time.monotonic()
        try:
            found = getattr(self.model.encoder, handles[0].method)(sources, **handles[0].options)
        except Exception as error:  # a device failure or a defect
            self._observer.failed(f"{type(error).__name__}: {error}")
            if isinstance(error, DeviceLostError):
                self._lost = error
                self.queue.close()
                handles = [*handles, *self.queue.clear()]
            for handle in handles:
                handle.fail(error)
            return
        self._observer.encoded(len(sources), time.monotonic() - started)
        first = 0
        for handle in handles:
            handle.succeed(found[first : first + len(handle.sources)])
            first += len(handle.sources)
