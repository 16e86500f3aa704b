"""The asyncio interface of the engines, which the protocols use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationOptions

from ..arguments import check_able
from ..attention.maps import Attention
from ..attention.reader import as_target, generation_of
from ..audio.reading import read_audio
from ..backends.interface import no_attention
from ..decoding.results import Result, Token
from ..decoding.running_batch import SelectedToken
from ..model import Model
from ..scoring.options import ScoringOptions
from .api_keys import ApiKeys
from .engine.encoder_engine import ABILITIES, EncoderEngine, EncoderHandle
from .engine.engine import MOST_OUTPUTS, DecodingEngine
from .engine.request_handle import DeadlineError, DecodingHandle
from .metrics import Metrics
from .models import ModelRegistry, ServedModel
from .options import ServerOptions

Outcome = TypeVar("Outcome")

READING_THREADS = 4
"""Threads that read texts and audio. Further requests are read one after another."""
MODEL_THREADS = 2
"""Threads that compute attention, count tokens, and use models in other ways than decoding."""
SHORT_SOURCE = 1000
"""Sources of up to so many characters or tokens are read on the event loop: that takes a tenth of a
millisecond, less than handing them to a thread and back."""


@dataclass(frozen=True)
class StreamEnd:
    """The last item of a stream.

    Attributes:
        result: the whole output
    """

    result: Result


class Service:
    """Runs the requests of all protocols.

    Attributes:
        api_keys: accepted API keys
    """

    def __init__(self, models: ModelRegistry, options: ServerOptions, metrics: Metrics) -> None:
        self.models, self.options, self.metrics = models, options, metrics
        self.api_keys = ApiKeys(options.api_keys)
        self._reading_pool = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="reading")
        self._model_pool = ThreadPoolExecutor(MODEL_THREADS, thread_name_prefix="model")

    async def generate(
        self,
        served: ServedModel,
        sources: Sequence[Any],
        options: Sequence[GenerationOptions],
        *,
        seconds: float | None = None,
    ) -> list[Result]:
        """Decode sources, see `Model.generate`.

        Args:
            options: options of each source
            seconds: time limit; None: the server's

        Raises:
            DragomanError: an option is wrong, the model is of another kind or cannot be loaded, too
                many requests are waiting, or the time limit has passed.
        """
        check_able(served.manifest, "generate")
        outputs = sum(each.num_return_sequences for each in options)
        if outputs > MOST_OUTPUTS:
            raise DragomanError(f"expected at most {MOST_OUTPUTS} outputs in all, found {outputs}")
        since, deadline = self._limits(seconds)
        async with served.engine(DecodingEngine) as engine:
            prepare = partial(engine.prepare, since=since, deadline=deadline)
            prepared = await self._prepared(prepare, sources, options)
            handles = [one for one in prepared if not isinstance(one, Result)]
            try:
                engine.submit(*handles)
                for handle in handles:
                    await asyncio.wrap_future(handle.future)
            finally:
                for handle in handles:
                    handle.future.cancel()
            results = [one if isinstance(one, Result) else one.future.result() for one in prepared]
            self._count(served, handles, sum(len(result.tokens) for result in results))
            return results

    async def stream(
        self,
        served: ServedModel,
        source: Any,
        options: GenerationOptions,
        *,
        seconds: float | None = None,
    ) -> AsyncGenerator[Token | StreamEnd, None]:
        """Decode a source token by token, see `Model.stream`.

        Closing the generator stops decoding.

        Raises:
            DragomanError: as in `generate`; or the options do not support streaming.
        """
        check_able(served.manifest, "stream")
        since, deadline = self._limits(seconds)
        loop = asyncio.get_running_loop()
        arrived = asyncio.Queue[Sequence[SelectedToken] | None]()

        def listen(choices: Sequence[SelectedToken] | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, choices)

        async with served.engine(DecodingEngine) as engine:
            prepare = partial(engine.prepare, since=since, deadline=deadline, listener=listen)
            (handle,) = await self._prepared(prepare, [source], [options])
            if isinstance(handle, Result):
                yield StreamEnd(handle)
                return
            output, count = engine.model.token_stream(), 0
            try:
                handle.future.add_done_callback(lambda _: listen(None))
                engine.submit(handle)
                try:
                    while (choices := await arrived.get()) is not None:
                        for token in output.tokens(choices):
                            count += 1
                            yield token
                except GeneratorExit:
                    self._count(served, [handle], count)
                    raise
                result = handle.future.result()
                self._count(served, [handle], len(result.tokens))
                yield StreamEnd(result)
            finally:
                handle.future.cancel()

    async def run_encoder(
        self,
        served: ServedModel,
        method: str,
        sources: Sequence[Any],
        options: dict[str, Any],
        *,
        seconds: float | None = None,
    ) -> list[Any]:
        """Run an encoder-only model on texts.

        Args:
            method: name of a method of `EncoderFrontEnd`
            options: keyword arguments of the method

        Raises:
            DragomanError: as in `generate`.
        """
        check_able(served.manifest, ABILITIES[method])
        since, deadline = self._limits(seconds)
        async with served.engine(EncoderEngine) as engine:
            handle = EncoderHandle(method, sources, options, since=since, deadline=deadline)
            try:
                engine.submit(handle)
                results = await asyncio.wrap_future(handle.future)
            finally:
                handle.future.cancel()
            self.metrics.admitted(served.name, [handle.times])
            return results

    async def attention(
        self,
        served: ServedModel,
        source: Any,
        target: str | list[int] | None,
        options: ScoringOptions,
        *,
        seconds: float | None = None,
    ) -> Attention:
        """Compute attention weights, see `Model.attention`.

        Args:
            target: target; None: the output of the model

        Raises:
            DragomanError: as in `generate`; or the bundle has no attention graph.
        """
        manifest = served.manifest
        if "attention" not in manifest.graphs:
            raise DragomanError(no_attention(served.name))
        if target is None and manifest.head is None and manifest.model.has_encoder:
            (result,) = await self.generate(
                served, [source], [generation_of(options)], seconds=seconds
            )
            target, options = as_target(result, options)

        def compute(model: Model) -> Attention:
            return model.attention(source, target, **vars(options))

        return await self.run_with_model(served, compute, seconds=seconds)

    async def run_with_model(
        self,
        served: ServedModel,
        work: Callable[[Model], Outcome],
        *,
        seconds: float | None = None,
    ) -> Outcome:
        """Call a function with a model in a thread, while the model decodes other requests.

        Raises:
            DragomanError: the model cannot be loaded, the function fails, or the time limit has
                passed.
        """
        since, deadline = self._limits(seconds)
        async with served.model() as model:
            working = asyncio.get_running_loop().run_in_executor(self._model_pool, work, model)
            try:
                return await asyncio.wait_for(working, deadline - since)
            except TimeoutError as error:
                raise DeadlineError(
                    f"the request was not done within {deadline - since:.3g} s"
                ) from error

    async def read_audio(self, served: ServedModel, *files: bytes) -> list[Any]:
        """Read audio files into samples, at the sampling rate of a model.

        Raises:
            AudioError: a file is not an audio file, or the files together are too long.
            DragomanError: the model does not take audio.
        """
        audio = served.manifest.audio
        if audio is None:
            raise DragomanError(
                f"{served.name} is not a speech model; send texts, or choose a speech model"
            )
        left, found = self.options.max_audio, []
        for data in files:
            read = partial(read_audio, longest=max(0.0, left))
            samples = await self._read(read, data, audio.sampling_rate)
            left -= len(samples) / audio.sampling_rate
            found.append(samples)
        return found

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self._reading_pool, self._model_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _prepared(
        self,
        prepare: Callable[[Any, GenerationOptions], DecodingHandle | Result],
        sources: Sequence[Any],
        options: Sequence[GenerationOptions],
    ) -> list[DecodingHandle | Result]:
        if len(sources) == 1 and _is_read_quickly(sources[0], options[0]):
            return [prepare(sources[0], options[0])]
        return await self._read(lambda: list(map(prepare, sources, options)))

    async def _read(self, work: Callable[..., Outcome], *arguments: Any) -> Outcome:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading_pool, work, *arguments)

    def _limits(self, seconds: float | None) -> tuple[float, float]:
        """Return the arrival time of a request, which is now, and its deadline."""
        now, longest = time.monotonic(), self.options.timeout
        return now, now + (longest if seconds is None else min(max(seconds, 0.0), longest))

    def _count(self, served: ServedModel, handles: Sequence[DecodingHandle], tokens: int) -> None:
        times = [handle.times for handle in handles]
        self.metrics.decoded(served.name, times, tokens, time.monotonic())


def _is_read_quickly(source: Any, options: GenerationOptions) -> bool:
    """Return whether a source is short, without phrases, which may decode the whole vocabulary."""
    short = isinstance(source, str | list) and len(source) <= SHORT_SOURCE
    return short and not (options.must_contain or options.must_not_contain or options.prefix)
