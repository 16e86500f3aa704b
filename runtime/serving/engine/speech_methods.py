"""The methods of `AsyncModel` that transcribe speech bit by bit."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, aclosing
from queue import SimpleQueue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, TypeVar, Unpack

from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from ...arguments import Source
from ...decoding.results import LiveUpdate, TranscriptUpdate
from ...model import Model
from ...speech.live import Chunk
from .engine import listener_of

Item = TypeVar("Item")


class AsyncSpeechMethods(ABC):
    """Those methods of `AsyncModel` that yield updates of transcripts.

    Each call has a thread of its own, and shares only the weights with others. A closed generator
    ends its thread before the next decoding step.
    """

    @property
    @abstractmethod
    def model(self) -> Model:
        """The loaded model."""

    @abstractmethod
    def _call(
        self, method: str | None, inputs: object, timeout: Any, cancel: Any = None
    ) -> AbstractContextManager[dict[str, Any]]:
        """Check a call, and return its limits."""

    async def transcribe(
        self,
        sources: Sequence[Source],
        options: GenerationOptions | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> AsyncGenerator[TranscriptUpdate, None]:
        """Transcribe recordings, and yield segments when they are decoded; see `Model.transcribe`.

        `generate` shares batches with other calls, and gives the whole transcript.
        """
        stopped = Event()

        def updates() -> Iterator[TranscriptUpdate]:
            with self._call("transcribe", sources, timeout, stopped) as limits:
                cancel = SimpleNamespace(is_set=limits["check"])  # raises the call's error
                yield from self.model.transcribe(
                    sources, options, journal=journal, cancel=cancel, **changes
                )

        async with aclosing(_from_thread(updates(), stopped.set)) as items:
            async for item in items:
                yield item

    async def listen(
        self,
        chunks: AsyncIterable[Chunk],
        options: GenerationOptions | None = None,
        *,
        timeout: float | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> AsyncGenerator[LiveUpdate, None]:
        """Transcribe speech while it arrives, and yield words at once; see `Model.listen`.

        An error of `chunks` is raised after the updates of what came before.
        """
        stopped, given = Event(), SimpleQueue[Chunk | None]()

        async def receive() -> None:
            try:
                async for chunk in chunks:
                    given.put(chunk)
            finally:
                given.put(None)

        def arriving() -> Iterator[Chunk]:
            while (chunk := given.get()) is not None:
                yield chunk

        def updates() -> Iterator[LiveUpdate]:
            with self._call("transcribe", (), timeout, stopped) as limits:
                cancel = SimpleNamespace(is_set=limits["check"])
                yield from self.model.listen(arriving(), options, cancel=cancel, **changes)

        def stop() -> None:
            stopped.set()
            given.put(None)

        receiving = asyncio.create_task(receive())
        try:
            async with aclosing(_from_thread(updates(), stop)) as items:
                async for item in items:
                    yield item
            await receiving
        finally:
            receiving.cancel()


async def _from_thread(
    items: Iterator[Item], stop: Callable[[], None]
) -> AsyncGenerator[Item, None]:
    """Yield items as a thread of its own computes them.

    Args:
        stop: called when no more are needed; makes the thread end soon
    """
    arrived: asyncio.Queue[Sequence[Item] | None] = asyncio.Queue()
    put, ended = listener_of(arrived), Future[None]()

    def compute() -> None:
        try:
            for item in items:
                put([item])
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)
        put(None)

    thread = Thread(target=compute, name="transcribing")
    thread.start()
    try:
        while (new := await arrived.get()) is not None:
            for item in new:
                yield item
    finally:
        stop()
        await asyncio.wait([asyncio.wrap_future(ended)])
        thread.join()
    ended.result()
