"""The methods of `AsyncModel` that transcribe speech bit by bit."""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, aclosing
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, TypeVar, Unpack

from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from ...arguments import Source, StopCheck
from ...decoding.results import LiveUpdate, TranscriptUpdate
from ...model import Model
from ...speech.live import Chunk
from .engine import listener_of, next_of

Item = TypeVar("Item")


class AsyncSpeechMethods(ABC):
    """Those methods of `AsyncModel` that yield updates of transcripts.

    Each call has a thread of its own, and shares only the weights with others: `max_waiting` does
    not count it. A closed generator ends its thread before the next decoding step.
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

        Chunks that arrive faster than they are decoded wait in memory. An error of `chunks` is
        raised after the updates of what came before.
        """
        stopped, given = Event(), SimpleQueue[tuple[Chunk] | None]()

        async def receive() -> None:
            try:
                async for chunk in chunks:
                    given.put((chunk,))
            finally:
                given.put(None)

        def updates() -> Iterator[LiveUpdate]:
            with self._call("transcribe", (), timeout, stopped) as limits:
                check: StopCheck = limits["check"]
                ends = None if timeout is None else time.monotonic() + limits["seconds"]
                cancel = SimpleNamespace(is_set=check)
                heard = _chunks_of(given, check, ends)
                yield from self.model.listen(heard, options, cancel=cancel, **changes)

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
            await asyncio.gather(receiving, return_exceptions=True)


def _chunks_of(
    given: SimpleQueue[tuple[Chunk] | None], check: StopCheck, ends: float | None
) -> Iterator[Chunk]:
    """Yield the chunks of a queue up to None.

    Args:
        ends: seconds of `time.monotonic` from which `check` raises an error; None: unlimited
    """
    while True:
        try:
            chunk = given.get(timeout=None if ends is None else max(0.0, ends - time.monotonic()))
        except Empty:
            check()
            continue
        if chunk is None:
            return
        check()
        yield chunk[0]


async def _from_thread(
    items: Iterator[Item], stop: Callable[[], None]
) -> AsyncGenerator[Item, None]:
    """Yield items as a thread of its own computes them.

    Args:
        stop: called when no more are needed; makes the thread end soon
    """
    arrived: asyncio.Queue[Item | None] = asyncio.Queue()
    put, ended, loop = listener_of(arrived), Future[None](), asyncio.get_running_loop()

    def compute() -> None:
        try:
            for item in items:
                put(item)
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)
        put(None)

    thread = Thread(target=compute, name="transcribing", daemon=True)
    thread.start()
    try:
        while (item := await next_of(arrived, loop)) is not None:
            yield item
    finally:
        stop()
        await asyncio.gather(asyncio.wrap_future(ended), return_exceptions=True)
        thread.join()
    ended.result()
