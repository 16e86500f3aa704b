"""The engine of an encoder-only model: inputs of several requests share batches."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ...arguments import StoppedError, check_count
from ...backends.interface import DeviceLostError, Steps
from ...decoding.results import UnfinishedError
from ...decoding.scheduler import Observer
from ...encoding.front_end import EncoderFrontEnd
from ...encoding.methods import pairs_of
from ...encoding.results import (
    Answer,
    Classification,
    Filling,
    RankedDocument,
    Tagging,
    arrays,
    check_dimensions,
    finished_as_arrays,
    stacked,
)
from ...encoding.tasks import TEMPLATE, ZeroShot, ranked
from ...encoding.tokenizer import ReadingKeywords
from ...model import Model, parts_of
from .engine import DecodingEngine, Engine, rows_of
from .request_handle import RequestHandle
from .request_queue import RequestQueue
from .worker import EngineThread

MAX_WAITING = 256
"""The most outputs that wait to be computed, by default."""
ABILITIES = {
    "embeddings": "encode",
    "classify": "classify",
    "tag": "tag",
    "fill": "fill",
    "answer": "answer",
}
"""The methods of `EncoderFrontEnd`, and the methods of `Model` that do the same."""
FRONT_END = {ability: method for method, ability in ABILITIES.items()} | {
    "hidden_states": "hidden_states",
    "classify_zero_shot": "classify",
    "rerank": "classify",
}
"""The methods of `AsyncEncoderMethods`, and the method of `EncoderFrontEnd` that each calls."""


class AsyncEncoderMethods(ABC):
    """Those methods of `AsyncModel` that are `EncoderMethods`, awaited."""

    @abstractmethod
    def _encoder(self, method: str, inputs: object) -> EncoderFrontEnd:
        """Return the front end for a call."""

    @abstractmethod
    async def _encode(
        self, method: str, inputs: Any, timeout: Any, reading: ReadingKeywords, **more: Any
    ) -> list[Any]:
        """Await the results of a method of `Model` for inputs."""

    async def encode(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> NDArray[np.float32]:
        """Compute embeddings; see `Model.encode`, and `generate` for errors."""
        size = self._encoder("encode", texts).head.outputs
        check_dimensions(dimensions, size)
        with finished_as_arrays():
            found = await self._encode("encode", texts, timeout, reading)
        return stacked(found, size, dimensions)

    async def hidden_states(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[NDArray[np.float32]]:
        """Compute hidden states; see `Model.hidden_states`."""
        with finished_as_arrays():
            found = await self._encode("hidden_states", texts, timeout, reading)
        return arrays(found)

    async def classify(
        self,
        texts: Sequence[str | tuple[str, str] | Sequence[int]],
        *,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Classification]:
        """Classify texts; see `Model.classify`."""
        return await self._encode("classify", texts, timeout, reading)

    async def classify_zero_shot(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Classification]:
        """Classify texts by given labels; see `Model.classify_zero_shot`."""
        self._encoder("classify_zero_shot", texts)
        own = ZeroShot.of(labels, hypothesis_template, multi_label)
        return await self._encode("classify_zero_shot", texts, timeout, reading, zero_shot=own)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None = None,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[RankedDocument]:
        """Rank documents; see `Model.rerank`."""
        encoder = self._encoder("rerank", documents)
        # Tokenizing a long query takes time, in which other requests go on.
        pairs = await asyncio.to_thread(pairs_of, encoder, query, documents, top, reading)
        return ranked(await self._encode("rerank", pairs, timeout, reading), top)

    async def tag(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Tagging]:
        """Label words and entities; see `Model.tag`."""
        return await self._encode("tag", texts, timeout, reading)

    async def fill(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        top: int = 5,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Filling]:
        """Predict masked tokens; see `Model.fill`."""
        check_count("top", top)
        return await self._encode("fill", texts, timeout, reading, top=top)

    async def answer(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        longest: int = 15,
        stride: int | None = None,
        timeout: float | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Answer]:
        """Answer questions; see `Model.answer`."""
        check_count("longest", longest)
        if stride is not None:
            check_count("stride", stride)
        more = {"longest": longest, "stride": stride}
        return await self._encode("answer", pairs, timeout, reading, **more)


class EncoderHandle(RequestHandle[list[Any]]):
    """The handle of a request to an encoder-only model.

    Args:
        method: name of a method of `EncoderFrontEnd`
    """

    def __init__(
        self,
        method: str,
        sources: Sequence[Any],
        options: dict[str, Any],
        *,
        seconds: float | None = None,
        since: float | None = None,
    ) -> None:
        super().__init__(seconds=seconds, since=since)
        self.method, self.sources, self.options = method, sources, options

    def is_like(self, other: EncoderHandle) -> bool:
        """Return whether both requests can be computed in one call."""
        return (self.method, self.options) == (other.method, other.options)


class EncodingWorker(EngineThread):
    """Takes requests from the queue, computes them in batches, and sets their results."""

    def __init__(
        self,
        number: int,
        model: Model,
        queue: RequestQueue[EncoderHandle],
        observer: Observer,
        rows: int,
    ) -> None:
        super().__init__(name=f"encoding-{number}", daemon=True)
        self._number, self._model, self._rows = number, model, rows
        self._queue, self._observer = queue, observer

    def run(self) -> None:
        """Compute until the queue is closed and empty, or the device is lost."""
        while self.lost is None:
            group = self._queue.take(
                self._number,
                busy=0,
                most=self._rows,
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
        sources = [source for handle in handles for source in handle.sources]
        started = time.monotonic()

        def check() -> None:
            now = time.monotonic()
            if all(handle.is_unneeded(now) for handle in handles):
                raise StoppedError("no request needs this batch")

        try:
            encoder = parts_of(self._model).encoder
            found = getattr(encoder, handles[0].method)(sources, check, **handles[0].options)
        except StoppedError as error:
            _distribute(error.finished, handles)
            for handle in handles:
                handle.is_over(time.monotonic())
        except DeviceLostError as error:
            self._observer.failed(f"{type(error).__name__}: {error}")
            self.lost = error
            if isinstance(error, UnfinishedError):
                _distribute(error.finished, handles)
            for handle in (*handles, *self._queue.withdraw(self._number)):
                handle.fail(UnfinishedError(str(error), handle.finished))
        except Exception as error:  # a device failure or a defect
            self._observer.failed(f"{type(error).__name__}: {error}")
            for handle in handles:
                handle.fail(error)
        else:
            self._observer.encoded(len(sources), time.monotonic() - started)
            _distribute(dict(enumerate(found)), handles)
            for handle in handles:
                handle.succeed([handle.finished[index] for index in range(len(handle.sources))])


class EncoderEngine(Engine):
    """Encodes the inputs of requests in threads; see `DecodingEngine` for weights and devices.

    Args:
        batch_size: maximum inputs in a batch; None: see `rows_of`
    """

    steps: Sequence[Steps] = ()
    """The number of decoding steps on each GPU, none."""
    rows = 0
    """The number of rows in use; none stay between two batches."""

    def __init__(
        self,
        *models: Model,
        workers: int = 1,
        batch_size: int | None = None,
        max_waiting: int = 256,
        share: float = 1.0,
        observer: Observer | None = None,
    ) -> None:
        self._models = models
        rows = {model: rows_of(model, batch_size, 0, share / workers) for model in models}
        self.batch_size = min(rows.values())
        each = [model for model in models for _ in range(workers)]
        self.queue: RequestQueue[EncoderHandle] = RequestQueue(
            max_waiting, [rows[model] for model in each], EncoderHandle.is_over
        )
        observer = observer or Observer()
        self._start(
            [
                EncodingWorker(number, model, self.queue, observer, rows[model])
                for number, model in enumerate(each)
            ]
        )

    def submit(self, handle: EncoderHandle) -> None:
        """Add a request to the queue."""
        self._check_devices()
        self.queue.put([(handle, len(handle.sources))])


AnyEngine = DecodingEngine | EncoderEngine


async def outcome_of(engine: EncoderEngine, handle: EncoderHandle) -> list[Any]:
    """Wait for the results of a request; if the task is cancelled, so is the request."""
    try:
        engine.submit(handle)
        return await asyncio.wrap_future(handle.future)
    finally:
        handle.future.cancel()


def open_engine(*models: Model, max_new_tokens: int | None = None, **batching: Any) -> AnyEngine:
    """Return the engine that a model needs; see `DecodingEngine`."""
    if models[0].manifest.head is not None:
        return EncoderEngine(*models, **batching)
    return DecodingEngine(*models, max_new_tokens=max_new_tokens, **batching)


def _distribute(finished: dict[int, Any], handles: Sequence[EncoderHandle]) -> None:
    """Give each request its finished results, by the index among all inputs."""
    first = 0
    for handle in handles:
        own = range(first, first + len(handle.sources))
        handle.finished = {index - first: finished[index] for index in own if index in finished}
        first = own.stop
