"""The requests of all protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from dragoman.errors import DragomanError, shown
from dragoman.settings.fields import replaced
from dragoman.settings.generation import GenerationOptions
from dragoman.settings.speech import LanguageOptions

from ..arguments import DeadlineError, check_able, never_stopped, stop_check
from ..attention.reader import Attention, as_target, generation_of
from ..audio.voice_activity import ending_pause
from ..backends.interface import no_attention
from ..decoding.results import Result, Segment, Token
from ..model import Model
from ..scoring.interface import ScoringOptions
from ..speech.plan import greedy_transcription, transcription_defaults
from ..speech.recording import Spectrogram
from ..texts.outputs import TokenStream
from .apis.http import Drain
from .audio_reading import AudioReader, OpenAudio
from .clients import ApiKeys
from .engine.encoder_engine import ABILITIES, EncoderEngine, EncoderHandle, outcome_of
from .engine.engine import (
    MOST_OUTPUTS,
    READING_THREADS,
    Arrived,
    DecodingEngine,
    arriving,
    check_outputs,
    listener_of,
    prepared,
    tokens_of,
)
from .engine.request_handle import DecodingHandle
from .metrics import Metrics
from .models import ModelRegistry, ServedModel
from .options import ServerOptions

Outcome = TypeVar("Outcome")
Options = TypeVar("Options", bound=LanguageOptions)

AUDIO_THREADS = 64
"""Threads that read audio, of which few work at a time, see `AudioReader`."""
MODEL_THREADS = 2
"""Threads that compute attention, count tokens, and use models in other ways than decoding."""


class Service:
    """Runs the requests of all protocols.

    Attributes:
        api_keys: accepted API keys
        drain: ends requests at shutdown
    """

    def __init__(self, models: ModelRegistry, options: ServerOptions, metrics: Metrics) -> None:
        self.models, self.options, self.metrics = models, options, metrics
        self.api_keys, self.drain = ApiKeys(options.api_keys), Drain()
        self._audio = AudioReader(options.max_audio, options.max_open_audio)
        self._reading_pool = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="reading")
        self._audio_pool = ThreadPoolExecutor(AUDIO_THREADS, thread_name_prefix="audio")
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
            seconds: time limit; None: the server's

        Raises:
            DragomanError: an option is wrong, the model is of another kind or cannot be loaded, too
                many requests are waiting, or the time limit has passed.
        """
        check_able(served.manifest, "generate")
        outputs = sum(each.num_return_sequences for each in options)
        if outputs > MOST_OUTPUTS:
            raise DragomanError(
                f"expected at most {MOST_OUTPUTS} outputs in all, found {shown(outputs)}"
            )
        since, seconds = self._limits(seconds)
        options = [self._with_default(each) for each in options]
        async with served.engine(DecodingEngine) as engine:
            # A long text without stops takes long to be cut.
            splits = any(each.split for each in options)
            check = stop_check(max(seconds, 1e-3)) if splits else never_stopped
            prepare = partial(engine.prepare, since=since, seconds=seconds, check=check)
            read = await prepared(self._reading_pool, prepare, sources, options)
            handles = [one for one in read if not isinstance(one, Result)]
            if splits:  # all texts of the request together
                check_outputs(sum(len(handle.jobs) for handle in handles), 1)
            try:
                engine.submit(*handles)
                for handle in handles:
                    await asyncio.wrap_future(handle.future)
            finally:
                for handle in handles:
                    handle.future.cancel()
            results = [one if isinstance(one, Result) else one.future.result() for one in read]
            self._count(served, handles, sum(len(result.tokens) for result in results), *results)
            return results

    async def stream(
        self,
        served: ServedModel,
        source: Any,
        options: GenerationOptions,
        *,
        seconds: float | None = None,
    ) -> AsyncGenerator[Token | Result, None]:
        """Decode a source token by token, see `Model.stream`; the last item is the whole output.

        Closing the generator stops decoding.
        """
        check_able(served.manifest, "stream")
        since, seconds = self._limits(seconds)
        options = self._with_default(options)
        arrived = Arrived()
        async with served.engine(DecodingEngine) as engine:
            listener = listener_of(arrived)
            prepare = partial(engine.prepare, since=since, seconds=seconds, listener=listener)
            (handle,) = await prepared(self._reading_pool, prepare, [source], [options])
            if isinstance(handle, Result):
                yield handle
                return
            texts = engine.model.text_stream(skip_special_tokens=options.skip_special_tokens)
            output, count = TokenStream(texts), 0
            async with aclosing(tokens_of(engine, handle, arrived, output)) as tokens:
                try:
                    async for token in tokens:
                        count += not token.is_end
                        yield token
                except GeneratorExit:
                    self._count(served, [handle], count)
                    raise
            result = handle.future.result()
            self._count(served, [handle], len(result.tokens), result)
            yield result

    async def transcribe(
        self, served: ServedModel, audio: Spectrogram, options: GenerationOptions
    ) -> AsyncGenerator[Segment | Result, None]:
        """Decode a recording segment by segment; the last item is the whole output.

        Closing the generator stops decoding.
        """
        check_able(served.manifest, "transcribe")
        since, seconds = self._limits(None)
        arrived: asyncio.Queue[Sequence[Segment] | None] = asyncio.Queue()
        async with served.engine(DecodingEngine) as engine:
            listener = listener_of(arrived)
            prepare = partial(engine.prepare, since=since, seconds=seconds, on_segments=listener)
            (handle,) = await prepared(self._reading_pool, prepare, [audio], [options])
            if isinstance(handle, Result):
                yield handle
                return
            sent = 0
            async with aclosing(arriving(engine, handle, arrived)) as items:
                async for segments in items:
                    for segment in segments:
                        sent += 1
                        yield segment
            result = handle.future.result()
            self._count(served, [handle], len(result.tokens), result)
            for segment in (result.segments or ())[sent:]:
                yield segment
            yield result

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
            options: arguments of the method; `split_special_tokens` has the server's default
        """
        check_able(served.manifest, ABILITIES[method])
        since, seconds = self._limits(seconds)
        async with served.engine(EncoderEngine) as engine:
            options = {"split_special_tokens": self.options.split_special_tokens} | options
            handle = EncoderHandle(method, sources, options, since=since, seconds=seconds)
            results = await outcome_of(engine, handle)
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
        """Compute attention weights, see `Model.attention`."""
        manifest, options = served.manifest, self._with_default(options)
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
        self, served: ServedModel, work: Callable[[Model], Outcome], *, seconds: float | None = None
    ) -> Outcome:
        """Call a function with a model in a thread, while the model decodes other requests."""
        since, seconds = self._limits(seconds)
        async with served.model() as model:
            working = asyncio.get_running_loop().run_in_executor(self._model_pool, work, model)
            try:
                return await asyncio.wait_for(working, since + seconds - time.monotonic())
            except TimeoutError as error:
                raise DeadlineError(f"the request was not done within {seconds:.3g} s") from error

    def transcription_options(
        self, served: ServedModel, options: GenerationOptions
    ) -> GenerationOptions:
        """Return the options of a request with the server's defaults for speech models."""
        if self.options.greedy:
            return greedy_transcription(options, served.manifest)
        rows = self.options.engine.batch_size
        return transcription_defaults(options, served.manifest, rows)

    @asynccontextmanager
    async def opened_audio(
        self, served: ServedModel, files: Sequence[bytes], *, vad: bool | None, cut: bool = False
    ) -> AsyncIterator[list[Spectrogram]]:
        """Read audio files for a model, and keep them open within the context.

        Args:
            vad: whether only speech is kept; None: the server's default
            cut: whether the recordings are divided at silence
        """
        settings = served.manifest.audio
        if settings is None:
            raise DragomanError(
                f"{served.name} is not a speech model; send texts, or choose a speech model"
            )
        audio = OpenAudio()
        try:
            loop = asyncio.get_running_loop()
            if vad is None:
                vad = self.transcription_options(served, GenerationOptions()).vad
            pause = ending_pause(vad=bool(vad), cut=cut)
            read = partial(self._audio.read, audio, files, settings, pause=pause)
            yield await loop.run_in_executor(self._audio_pool, read)
        finally:
            self._audio.close(audio)

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self._reading_pool, self._audio_pool, self._model_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _with_default(self, options: Options) -> Options:
        if options.split_special_tokens is not None:
            return options
        return replaced(options, {"split_special_tokens": self.options.split_special_tokens})

    def _limits(self, seconds: float | None) -> tuple[float, float]:
        stop_check(seconds)
        longest = self.options.timeout
        return time.monotonic(), longest if seconds is None else min(seconds, longest)

    def _count(
        self, served: ServedModel, handles: Sequence[DecodingHandle], tokens: int, *results: Result
    ) -> None:
        times = [handle.times for handle in handles]
        unknown = sum(len(result.unknown_characters) for result in results)
        self.metrics.decoded(served.name, times, tokens, unknown, time.monotonic())
