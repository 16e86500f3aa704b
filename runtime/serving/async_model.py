"""The asyncio interface of the engines: `AsyncModel`."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial, wraps
from itertools import islice, repeat
from pathlib import Path
from threading import Condition, Event, Thread
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from dragoman.errors import DragomanError, cannot_pickle, shown
from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from ..arguments import (
    MOST_SECONDS,
    DeadlineError,
    Source,
    StoppedError,
    check_count,
    check_list,
    options_of,
    options_of_each,
    stop_check,
)
from ..audio import AudioWarning
from ..backends.interface import BackendError, ClosedModelError, DeviceLostError
from ..decoding.results import RejectedError, Result, Token, UnfinishedError
from ..encoding.front_end import EncoderFrontEnd
from ..encoding.tokenizer import ReadingKeywords
from ..format.bundle import Bundle, read_bundle
from ..format.known_answers import Check
from ..model import Model, parts_of
from ..texts.outputs import TokenStream
from .arrangement import load_arranged
from .engine.encoder_engine import (
    FRONT_END,
    MAX_WAITING,
    AsyncEncoderMethods,
    EncoderEngine,
    EncoderHandle,
    open_engine,
    outcome_of,
)
from .engine.engine import (
    READING_THREADS,
    Arrived,
    DecodingEngine,
    listener_of,
    prepared,
    tokens_of,
)
from .engine.request_handle import DecodingHandle
from .engine.speech_methods import AsyncSpeechMethods
from .options import EngineOptions

P = ParamSpec("P")
T = TypeVar("T")

SCORING_THREADS = 2
"""Threads that score and compute attention weights. Further calls wait."""
OPEN_RECORDINGS = 32
"""The most recordings of a call whose features are in memory."""


def _in_thread(
    method: Callable[Concatenate[Model, P], T],
) -> Callable[Concatenate[AsyncModel, P], Coroutine[Any, Any, T]]:
    """Return a method of `AsyncModel` that calls a method of `Model` in one of its threads.

    The time limit of a call begins when it is made, not when a thread is free.
    """

    @wraps(method)
    async def call(model: AsyncModel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        timeout, cancel = kwargs.pop("timeout", None), kwargs.pop("cancel", None)
        with model._call(None, (), timeout, cancel) as limits:
            kwargs["cancel"] = SimpleNamespace(is_set=limits["check"])  # raises the call's error
            work = partial(method, model.model, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(model._scoring, work)

    return call


class AsyncModel(AsyncEncoderMethods, AsyncSpeechMethods):
    """A bundle ready to run in asyncio, made by `AsyncModel.load`.

    Its methods are those of `Model`, with the same results. Concurrent calls share batches
    (continuous batching) and the weights; they may come from several event loops. `score`,
    `attention`, `align`, `replace_unknown`, `detect_language`, `transcribe` and `listen` run in
    threads and share only the weights.

    A call stops when its task is cancelled, and a stream when it is closed: their rows are freed
    before the next step. After `timeout` seconds, a call raises a `DeadlineError`, which holds its
    finished results.

    While `max_waiting` outputs wait, further calls raise an `OverloadedError`. With none waiting,
    any call is accepted.

    Args:
        models: a loaded model, which is closed with this one, on each GPU
    """

    def __init__(
        self,
        *models: Model,
        workers: int = 1,
        batch_size: int | None = None,
        max_waiting: int = MAX_WAITING,
        max_new_tokens: int | None = None,
    ) -> None:
        opened: tuple[object, ...] = models or (None,)
        for one in opened:
            if not isinstance(one, Model):
                raise DragomanError(
                    f"expected a Model, found {shown(one)}: use await AsyncModel.load(...)"
                )
        self._engine = open_engine(
            *models,
            workers=workers,
            batch_size=batch_size,
            max_waiting=max_waiting,
            max_new_tokens=max_new_tokens,
        )
        self._reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="reading")
        self._scoring = ThreadPoolExecutor(SCORING_THREADS, thread_name_prefix="scoring")
        self._calls, self._changed = 0, Condition()
        self._closed: Future[None] | None = None

    @classmethod
    async def load(
        cls,
        directory: str | Path | Bundle,
        *,
        workers: int | None = None,
        threads: int | None = None,
        batch_size: int | None = None,
        max_waiting: int = MAX_WAITING,
        max_new_tokens: int | None = None,
        backend: str | None = None,
        devices: Sequence[str] = (),
        check: Check = "once",
        allow_fallback: bool = False,
    ) -> AsyncModel:
        """Load a bundle in a thread.

        Args:
            directory, backend, check, allow_fallback: see `load`
            workers, threads: decoding loops, each with its own batch, and CPU threads of each.
                None: the best by `dragoman bench --arrangement` on this machine, or else a loop for
                each core or GPU.
            batch_size: maximum rows in the batch of a loop; a source has a row for each beam. None:
                64, or as many as fit into the memory of a GPU
            devices: see `load`; each has a copy of the weights and `workers` loops. Empty: the
                device that `load` selects.
            max_waiting: maximum waiting outputs
            max_new_tokens: for each of which an output has memory set aside; None: 512, or the
                bundle's default if more

        Raises:
            KnownAnswersError, BundleError, BackendError: as for `load`.
            DragomanError: a number is not an integer of at least 1, or there are too many threads.
        """
        numbers = {"workers": workers, "threads": threads, "batch_size": batch_size}
        for name, value in (numbers | {"max_new_tokens": max_new_tokens}).items():
            if value is not None:
                check_count(name, value)
        check_count("max_waiting", max_waiting)
        options = EngineOptions(
            workers=workers,
            threads=threads,
            batch_size=batch_size,
            backend=backend,
            devices=tuple(devices),
            check=check,
            allow_fallback=allow_fallback,
        )

        def opened() -> AsyncModel:
            bundle = read_bundle(directory, remembered=check != "always")
            models, chosen = load_arranged(bundle, options)
            return cls(
                *models,
                workers=chosen.workers,
                batch_size=chosen.batch_size,
                max_waiting=max_waiting,
                max_new_tokens=max_new_tokens,
            )

        # Not a task of the event loop, which may end while the bundle is loaded.
        pool = ThreadPoolExecutor(1, thread_name_prefix="loading")
        loading = pool.submit(opened)
        pool.shutdown(wait=False)
        try:
            return await asyncio.wrap_future(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_close_unused)
            raise

    @property
    def model(self) -> Model:
        """The loaded model."""
        return self._engine.model

    @property
    def rows(self) -> int:
        """The number of rows that are being decoded."""
        return self._engine.rows

    async def close(self) -> None:
        """Wait until running calls are finished, and free the model.

        Later calls raise a `ClosedModelError`.
        """
        await asyncio.shield(asyncio.wrap_future(self._start_closing()))

    async def __aenter__(self) -> AsyncModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    __reduce__ = cannot_pickle

    async def generate(
        self,
        sources: Sequence[Source],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        *,
        timeout: float | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> list[Result]:
        """Decode inputs of any number and lengths; see `Model.generate`.

        Options of batches have no effect, since calls share them; see `load`.

        Raises:
            OverloadedError: too many outputs wait.
            DeadlineError: time ran out; holds the finished results.
            ClosedModelError: the model is closed.
            DragomanError: an option exceeds a limit of `load`, or as for `Model.generate`.
        """
        with self._call("generate", sources, timeout) as limits:
            each = options_of_each(options, changes, len(sources))
            if not sources:
                return parts_of(self.model).front_end.generate(sources, each)  # checks the options
            finished: dict[int, Result] = {}
            running: deque[tuple[int, DecodingHandle]] = deque()
            try:
                await self._decode(sources, each, limits, running, finished)
            except (DeadlineError, DeviceLostError) as error:
                finished |= {i: one.future.result() for i, one in running if one.has_succeeded}
                kind = DeadlineError if isinstance(error, DeadlineError) else UnfinishedError
                raise kind(str(error), finished) from error
            finally:
                for _, handle in running:
                    handle.future.cancel()
            return [finished[index] for index in range(len(sources))]

    async def stream(
        self,
        source: Source,
        options: GenerationOptions | None = None,
        *,
        timeout: float | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> AsyncGenerator[Token, None]:
        """Decode an input of any length, and yield each token at once; see `Model.stream`.

        Raises:
            RejectedError: the input cannot be decoded.
            OverloadedError, DeadlineError, ClosedModelError, DragomanError: as for `generate`.
        """
        arrived = Arrived()
        with self._call("stream", [source], timeout) as limits:
            resolved, engine = options_of(options, changes), self._decoding_engine
            texts = self.model.text_stream(skip_special_tokens=resolved.skip_special_tokens)
            listener = listener_of(arrived)
            prepare = partial(engine.prepare, listener=listener, **limits)
            (handle,) = await prepared(self._reading, prepare, [source], [resolved])
        result = handle
        if isinstance(handle, DecodingHandle):
            async with aclosing(tokens_of(engine, handle, arrived, TokenStream(texts))) as tokens:
                async for token in tokens:
                    yield token
            result = handle.future.result()
        if isinstance(result, Result):
            if result.error is not None:
                raise RejectedError(result.error)
            for defect in result.warnings:
                warnings.warn(defect, AudioWarning, stacklevel=2)

    score = _in_thread(Model.score)
    """Compute the probability of each target; see `Model.score`."""

    attention = _in_thread(Model.attention)
    """Compute the attention weights of a source and a target; see `Model.attention`."""

    align = _in_thread(Model.align)
    """Align the words of outputs with those of their sources; see `Model.align`."""

    detect_language = _in_thread(Model.detect_language)
    """Detect the languages of recordings; see `Model.detect_language`."""

    replace_unknown = _in_thread(Model.replace_unknown)
    """Return the text of a result without unknown tokens; see `Model.replace_unknown`."""

    async def _decode(
        self,
        sources: Sequence[Source],
        options: GenerationOptions | Sequence[GenerationOptions],
        limits: dict[str, Any],
        running: deque[tuple[int, DecodingHandle]],
        finished: dict[int, Result],
    ) -> None:
        """Decode sources, and keep the requests that are running and the finished results.

        Texts are submitted together, recordings while few of them are in memory.
        """
        engine, front_end = self._decoding_engine, parts_of(self.model).front_end

        def prepare(source: Any, own: GenerationOptions) -> DecodingHandle | Result:
            try:
                return engine.prepare(source, own, **limits)
            except DragomanError as error:
                if isinstance(error, StoppedError) or isinstance(options, GenerationOptions):
                    raise
                return front_end.rejected(str(error))  # the options of this source are wrong

        each = repeat(options) if isinstance(options, GenerationOptions) else options
        waiting = zip(range(len(sources)), sources, each, strict=False)
        most = len(sources) if self.model.manifest.speech is None else OPEN_RECORDINGS
        is_accepted = False
        while len(finished) < len(sources):
            following = list(islice(waiting, most - len(running)))
            if following:
                indices, inputs, own = zip(*following, strict=True)
                found = await prepared(self._reading, prepare, inputs, own)
                new = list[tuple[int, DecodingHandle]]()
                for index, one in zip(indices, found, strict=True):
                    if isinstance(one, Result):
                        finished[index] = one
                    else:
                        new.append((index, one))
                engine.submit(*(handle for _, handle in new), is_accepted=is_accepted)
                is_accepted = is_accepted or bool(new)
                running.extend(new)
            if running:
                index, handle = running[0]
                try:
                    finished[index] = await asyncio.wrap_future(handle.future)
                except BackendError as error:
                    finished[index] = front_end.rejected(str(error))
                running.popleft()

    def _encoder(self, method: str, inputs: object) -> EncoderFrontEnd:
        with self._call(method, inputs, None):
            return parts_of(self.model).encoder

    async def _encode(
        self, method: str, inputs: Any, timeout: Any, reading: ReadingKeywords, **more: Any
    ) -> list[Any]:
        with self._call(method, inputs, timeout) as limits:
            del limits["check"]  # the engine observes the time limit
            handle = EncoderHandle(FRONT_END[method], inputs, {**reading, **more}, **limits)
            return await outcome_of(cast("EncoderEngine", self._engine), handle)

    @property
    def _decoding_engine(self) -> DecodingEngine:
        return cast("DecodingEngine", self._engine)  # `_call` has checked what the model does

    @contextmanager
    def _call(
        self, method: str | None, inputs: object, timeout: Any, cancel: Any = None
    ) -> Iterator[dict[str, Any]]:
        """Check a call, and return its limits, as arguments of `prepare`.

        Within the context, the model stays open.
        """
        ended, since = Event(), time.monotonic()
        with self._changed:
            if self._closed is not None:
                raise ClosedModelError
            parts_of(self.model, method)
            check_list(inputs)
            check = stop_check(timeout, ended, cancel)
            self._calls += 1
        limit = None if timeout is None else min(timeout, MOST_SECONDS)
        try:
            yield {"check": check, "since": since, "seconds": limit}
        finally:
            ended.set()
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _start_closing(self) -> Future[None]:
        with self._changed:
            if self._closed is None:
                self._closed = Future()
                Thread(target=self._close, args=[self._closed], name="closing").start()
            return self._closed

    def _close(self, closed: Future[None]) -> None:
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._calls)
            self._engine.close()
            for pool in (self._reading, self._scoring):
                pool.shutdown()
        except BaseException as error:
            closed.set_exception(error)
        else:
            closed.set_result(None)


def _close_unused(loading: Future[AsyncModel]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result()._start_closing()
