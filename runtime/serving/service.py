"""Requests of asyncio -> tickets of engines, and what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dragoman.errors import DragomanError

from ..abilities import check_able
from ..audio.reading import read_audio
from ..decoding.options import GenerationOptions
from ..decoding.results import Result, Token
from ..decoding.streaming import Choice
from ..model import Model
from .engine.engine import Engine
from .engine.texts import ABILITIES, TextsEngine, TextsTicket
from .engine.ticket import DecodingTicket
from .host import Host
from .hosts import Hosts
from .metrics import Metrics
from .options import ServerOptions

Made = TypeVar("Made")

READERS = 4
"""Threads that read texts and audio: more requests than these are read one after another."""
SHORT = 1000
"""A source of up to so many characters or tokens is read at once: that takes a tenth of a
millisecond, less than handing it to a thread and back."""


@dataclass(frozen=True)
class Ended:
    """The end of a stream.

    Attributes:
        result: the whole output
    """

    result: Result


class Service:
    """What the protocols ask for."""

    def __init__(self, hosts: Hosts, options: ServerOptions, metrics: Metrics) -> None:
        self.hosts, self.options, self.metrics = hosts, options, metrics
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reading")

    async def generate(
        self,
        host: Host,
        sources: Sequence[Any],
        options: Sequence[GenerationOptions],
        *,
        seconds: float | None = None,
    ) -> list[Result]:
        """See `Model.generate`; each source has options of its own.

        Args:
            seconds: that it may take; None: as long as the server allows

        Raises:
            DragomanError: an option is wrong, the model is of another kind or cannot be loaded, too
                many requests wait, or the time is up.
        """
        check_able(host.manifest, "generate")
        since, deadline = self._times(seconds)
        async with host.engine(Engine) as engine:
            prepare = partial(engine.prepare, since=since, deadline=deadline)
            prepared = [
                await self._prepared(prepare, source, each)
                for source, each in zip(sources, options, strict=True)
            ]
            tickets = [one for one in prepared if not isinstance(one, Result)]
            try:
                engine.enter(*tickets)
                for ticket in tickets:
                    await asyncio.wrap_future(ticket.future)
            finally:
                for ticket in tickets:
                    ticket.future.cancel()
            results = [one if isinstance(one, Result) else one.future.result() for one in prepared]
            self._count(host, tickets, results)
            return results

    async def stream(
        self,
        host: Host,
        source: Any,
        options: GenerationOptions,
        *,
        seconds: float | None = None,
    ) -> AsyncIterator[Token | Ended]:
        """See `Model.stream`; the whole result comes last.

        Raises:
            DragomanError: as `generate`; or options do not allow tokens to be told before the end.
        """
        check_able(host.manifest, "stream")
        since, deadline = self._times(seconds)
        loop = asyncio.get_running_loop()
        arrived = asyncio.Queue[Sequence[Choice] | None]()

        def listen(choices: Sequence[Choice] | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, choices)

        async with host.engine(Engine) as engine:
            prepare = partial(engine.prepare, since=since, deadline=deadline, listener=listen)
            ticket = await self._prepared(prepare, source, options)
            if isinstance(ticket, Result):
                yield Ended(ticket)
                return
            try:
                ticket.future.add_done_callback(lambda _: listen(None))
                engine.enter(ticket)
                output = engine.model.token_stream()
                while (choices := await arrived.get()) is not None:
                    for token in output.tokens(choices):
                        yield token
                result = ticket.future.result()
                self._count(host, [ticket], [result])
                yield Ended(result)
            finally:
                ticket.future.cancel()

    async def read_texts(
        self,
        host: Host,
        method: str,
        sources: Sequence[Any],
        options: dict[str, Any],
        *,
        seconds: float | None = None,
    ) -> list[Any]:
        """What an encoder alone makes of texts.

        Args:
            method: of `EncoderFrontEnd`
            options: its keywords

        Raises:
            DragomanError: as `generate`.
        """
        check_able(host.manifest, ABILITIES[method])
        since, deadline = self._times(seconds)
        async with host.engine(TextsEngine) as engine:
            ticket = TextsTicket(method, sources, options, since=since, deadline=deadline)
            try:
                engine.enter(ticket)
                found = await asyncio.wrap_future(ticket.future)
            finally:
                ticket.future.cancel()
            self.metrics.waited(host.name, [ticket.times])
            return found

    async def with_model(self, host: Host, work: Callable[[Model], Made]) -> Made:
        """Let something be done with a model, beside what is decoded.

        Raises:
            DragomanError: the model cannot be loaded, or `work` raises it.
        """
        async with host.model() as model:
            return await self._read(work, model)

    async def read_audio(self, host: Host, data: bytes) -> Any:
        """The samples of an audio file.

        Raises:
            AudioError: it is none, or longer than the server allows.
            DragomanError: the model does not take audio.
        """
        if host.manifest.audio is None:
            raise DragomanError(f"{host.name} is no speech model")
        return await self._read(
            partial(read_audio, longest=self.options.audio_seconds),
            data,
            host.manifest.audio.sampling_rate,
        )

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _prepared(
        self,
        prepare: Callable[[Any, GenerationOptions], DecodingTicket | Result],
        source: Any,
        options: GenerationOptions,
    ) -> DecodingTicket | Result:
        if isinstance(source, str | list) and len(source) <= SHORT:
            return prepare(source, options)
        return await self._read(prepare, source, options)

    async def _read(self, work: Callable[..., Made], *arguments: Any) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    def _times(self, seconds: float | None) -> tuple[float, float]:
        """When a request arrives, which is now, and when it must be done."""
        now, longest = time.monotonic(), self.options.longest_request
        return now, now + (longest if seconds is None else min(seconds, longest))

    def _count(
        self, host: Host, tickets: Sequence[DecodingTicket], results: Sequence[Result]
    ) -> None:
        tokens = sum(len(result.tokens) for result in results)
        self.metrics.decoded(
            host.name, [ticket.times for ticket in tickets], tokens, time.monotonic()
        )
