"""Requests of asyncio -> tickets of engines, and what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dragoman.errors import DragomanError

from ..abilities import check_able
from ..attention.maps import Attention
from ..attention.reader import as_target, generation_of
from ..audio.reading import read_audio
from ..backends.errors import no_attention
from ..decoding.options import GenerationOptions
from ..decoding.results import Result, Token
from ..decoding.streaming import Choice
from ..model import Model
from ..scoring.options import ScoringOptions
from .engine.engine import MOST_OUTPUTS, Engine
from .engine.texts import ABILITIES, TextsEngine, TextsTicket
from .engine.ticket import DeadlineError, DecodingTicket
from .host import Host
from .hosts import Hosts
from .metrics import Metrics
from .options import ServerOptions

Made = TypeVar("Made")

READERS = 4
"""Threads that read texts and audio: more requests than these are read one after another."""
LOOKERS = 2
"""Threads that compute attention, and what else is asked of a model beside decoding."""
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
        self._lookers = ThreadPoolExecutor(LOOKERS, thread_name_prefix="looking")

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
        outputs = sum(each.num_return_sequences for each in options)
        if outputs > MOST_OUTPUTS:
            raise DragomanError(f"expected at most {MOST_OUTPUTS} outputs in all, found {outputs}")
        since, deadline = self._times(seconds)
        async with host.engine(Engine) as engine:
            prepare = partial(engine.prepare, since=since, deadline=deadline)
            prepared = await self._prepared(prepare, sources, options)
            tickets = [one for one in prepared if not isinstance(one, Result)]
            try:
                engine.enter(*tickets)
                for ticket in tickets:
                    await asyncio.wrap_future(ticket.future)
            finally:
                for ticket in tickets:
                    ticket.future.cancel()
            results = [one if isinstance(one, Result) else one.future.result() for one in prepared]
            self._count(host, tickets, sum(len(result.tokens) for result in results))
            return results

    async def stream(
        self,
        host: Host,
        source: Any,
        options: GenerationOptions,
        *,
        seconds: float | None = None,
    ) -> AsyncGenerator[Token | Ended, None]:
        """See `Model.stream`; the whole result comes last. Whoever has enough closes it.

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
            (ticket,) = await self._prepared(prepare, [source], [options])
            if isinstance(ticket, Result):
                yield Ended(ticket)
                return
            output, told = engine.model.token_stream(), 0
            try:
                ticket.future.add_done_callback(lambda _: listen(None))
                engine.enter(ticket)
                try:
                    while (choices := await arrived.get()) is not None:
                        for token in output.tokens(choices):
                            told += 1
                            yield token
                except GeneratorExit:
                    self._count(host, [ticket], told)
                    raise
                result = ticket.future.result()
                self._count(host, [ticket], len(result.tokens))
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

    async def attention(
        self,
        host: Host,
        source: Any,
        target: str | list[int] | None,
        options: ScoringOptions,
        *,
        seconds: float | None = None,
    ) -> Attention:
        """See `Model.attention`; a target that is not given is decoded like any request.

        Raises:
            DragomanError: as `generate`; or the bundle does not have the graph for it.
        """
        manifest = host.manifest
        if "attention" not in manifest.graphs:
            raise DragomanError(no_attention(host.name))
        if target is None and manifest.head is None and manifest.model.has_encoder:
            (result,) = await self.generate(
                host, [source], [generation_of(options)], seconds=seconds
            )
            target, options = as_target(result, options)

        def look(model: Model) -> Attention:
            return model.attention(source, target, **vars(options))

        return await self.with_model(host, look, seconds=seconds)

    async def with_model(
        self, host: Host, work: Callable[[Model], Made], *, seconds: float | None = None
    ) -> Made:
        """Let something be done with a model, beside what is decoded.

        Raises:
            DragomanError: the model cannot be loaded, `work` raises it, or the time is up before it
                is done.
        """
        since, deadline = self._times(seconds)
        async with host.model() as model:
            looking = asyncio.get_running_loop().run_in_executor(self._lookers, work, model)
            try:
                return await asyncio.wait_for(looking, deadline - since)
            except TimeoutError as error:
                raise DeadlineError(
                    f"the request was not done within {deadline - since:.3g} s"
                ) from error

    async def read_audio(self, host: Host, *files: bytes) -> list[Any]:
        """The samples of audio files.

        Raises:
            AudioError: one is none, or all together are longer than the server allows.
            DragomanError: the model does not take audio.
        """
        if host.manifest.audio is None:
            raise DragomanError(f"{host.name} is no speech model")
        rate, left, found = host.manifest.audio.sampling_rate, self.options.audio_seconds, []
        for data in files:
            samples = await self._read(partial(read_audio, longest=max(0.0, left)), data, rate)
            left -= len(samples) / rate
            found.append(samples)
        return found

    def close(self) -> None:
        for pool in (self._readers, self._lookers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _prepared(
        self,
        prepare: Callable[[Any, GenerationOptions], DecodingTicket | Result],
        sources: Sequence[Any],
        options: Sequence[GenerationOptions],
    ) -> list[DecodingTicket | Result]:
        if len(sources) == 1 and _is_read_quickly(sources[0], options[0]):
            return [prepare(sources[0], options[0])]
        return await self._read(lambda: list(map(prepare, sources, options)))

    async def _read(self, work: Callable[..., Made], *arguments: Any) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    def _times(self, seconds: float | None) -> tuple[float, float]:
        """When a request arrives, which is now, and when it must be done."""
        now, longest = time.monotonic(), self.options.longest_request
        return now, now + (longest if seconds is None else min(max(seconds, 0.0), longest))

    def _count(self, host: Host, tickets: Sequence[DecodingTicket], tokens: int) -> None:
        self.metrics.decoded(
            host.name, [ticket.times for ticket in tickets], tokens, time.monotonic()
        )


def _is_read_quickly(source: Any, options: GenerationOptions) -> bool:
    """Phrases take longer: the first ones decode the whole vocabulary."""
    short = isinstance(source, str | list) and len(source) <= SHORT
    return short and not (options.must_contain or options.must_not_contain or options.prefix)
