"""The engine of a model that decodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from dragoman.errors import DragomanError, cannot_pickle, shown
from dragoman.settings.generation import DEFAULT_BATCH_SIZE, GenerationOptions

from ...arguments import StopCheck, never_stopped
from ...backends.interface import DeviceLostError, Steps
from ...decoding.results import Result, Segment, Token
from ...decoding.running_batch import Job, SelectedToken, only_strategy
from ...decoding.scheduler import Observer
from ...model import Model, parts_of
from ...speech.recording import Spectrogram
from ...speech.transcriber import PendingSpeech, check_streamed
from ...texts.front_end import TextFrontEnd
from ...texts.outputs import TokenStream
from ...texts.sentences import check_unsplit
from .request_handle import DecodingHandle, Listener, Pending, QueuedRequest
from .request_queue import RequestQueue
from .worker import EngineThread, Worker

Part = TypeVar("Part")

Arrived = asyncio.Queue[Sequence[SelectedToken] | None]
"""The new tokens of a stream; None after the last ones."""

READING_THREADS = 4
"""Threads that read texts. Further requests are read one after another."""
SHORT_SOURCE = 1000
"""Sources of up to so many characters or tokens are read on the event loop: that takes a tenth of a
millisecond, less than handing them to a thread and back."""
MOST_OUTPUTS = 1024
"""The most outputs of a request."""
LONGEST_OUTPUT = 512
"""The most new tokens of a request unless the bundle's default is more or the server has another
limit: memory is set aside for each row."""


class Engine:
    """Threads that work on the requests of one queue."""

    _models: Sequence[Model]
    _workers: Sequence[EngineThread]
    queue: RequestQueue[Any]

    @property
    def model(self) -> Model:
        """The model, on the first device that is not lost."""
        workers = self._workers[:: len(self._workers) // len(self._models)]
        usable = (m for m, w in zip(self._models, workers, strict=True) if w.lost is None)
        return next(usable, self._models[0])

    @property
    def alive(self) -> bool:
        """Whether the engine can work on all its devices."""
        return all(worker.is_alive() and worker.lost is None for worker in self._workers)

    __reduce__ = cannot_pickle

    def close(self) -> None:
        """Refuse new requests, finish accepted ones, and end the threads."""
        self.queue.close()
        for worker in self._workers:
            worker.join()
        for model in self._models:
            model.close()

    def _start(self, workers: Sequence[EngineThread]) -> None:
        self._workers = workers
        for worker in workers:
            worker.start()

    def _check_devices(self) -> None:
        lost = [worker.lost for worker in self._workers if worker.lost is not None]
        if len(lost) == len(self._workers):
            raise DeviceLostError(str(lost[0]))


class DecodingEngine(Engine):
    """Decodes requests of a model in workers.

    Workers share the weights, but for ONNX Runtime on a GPU: it binds a session to one stream, so
    that each worker has a copy. If a device is lost, the requests of its workers fail, and the
    workers of other devices go on.

    Args:
        models: a model loaded with `threads_of(workers, threads)`, on each GPU
        workers: threads of each model, each with its own batch
        batch_size: maximum rows in a worker's batch; None: see `rows_of`
        max_new_tokens: maximum new tokens of a request; None: see `LONGEST_OUTPUT`
    """

    def __init__(
        self,
        *models: Model,
        workers: int = 1,
        batch_size: int | None = None,
        max_waiting: int = 256,
        max_new_tokens: int | None = None,
        share: float = 1.0,
        observer: Observer | None = None,
    ) -> None:
        self._models = models
        self.max_new_tokens, self._capacity = _capacity(models[0], max_new_tokens)
        rows = {m: rows_of(m, batch_size, self._capacity, share / workers) for m in models}
        self.batch_size = min(rows.values())
        each = [model for model in models for _ in range(workers)]
        self.queue: RequestQueue[Job[QueuedRequest]] = RequestQueue(
            max_waiting,
            [rows[model] for model in each],
            lambda job, now: job.key.handle.is_over(now),
        )
        observer = observer or Observer()
        self._decoding = [
            Worker(
                number,
                model.backend,
                model.manifest.model,
                self.queue,
                observer,
                rows=rows[model],
                capacity=self._capacity,
            )
            for number, model in enumerate(each)
        ]
        self._start(self._decoding)

    def prepare(
        self,
        source: Any,
        options: GenerationOptions,
        *,
        seconds: float | None = None,
        since: float | None = None,
        listener: Listener | None = None,
        on_segments: Callable[[Sequence[Segment]], None] | None = None,
        check: StopCheck = never_stopped,
    ) -> DecodingHandle | Result:
        """Read an input and return its handle, or its result if it is empty or rejected.

        Args:
            seconds, since: see `RequestHandle`
            listener: receives every new token, including end tokens
            on_segments: receives the segments of a transcript as they are complete
            check: called while the input is read

        Raises:
            DragomanError: an option is wrong, or new tokens, outputs or rows exceed a limit.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """
        if options.num_return_sequences > MOST_OUTPUTS:
            raise DragomanError(
                f"num_return_sequences: expected at most {MOST_OUTPUTS}, found "
                f"{shown(options.num_return_sequences)}"
            )
        front_end = parts_of(self.model, "generate").front_end
        if listener is not None:
            is_text = self.model.manifest.speech is None
            (check_unsplit if is_text else check_streamed)(options)
        limited = self._limited(options)
        if isinstance(front_end, TextFrontEnd):
            counted = partial(check_outputs, outputs=options.num_return_sequences)
            pending: Pending | Result = front_end.begin(source, limited, check, counted)
        else:
            pending = front_end.begin(source, limited, check)
        if isinstance(pending, Result):
            return pending
        if isinstance(pending, PendingSpeech):
            pending.on_segments = on_segments
        width = max(job.strategy.width for job in pending.jobs)
        if width > self.batch_size:
            raise DragomanError(
                f"num_beams: expected at most {self.batch_size}, the rows of a batch, "
                f"found {shown(width)}"
            )
        if listener is not None:
            only_strategy([job.strategy for job in pending.jobs])
        if max(job.request.capacity for job in pending.jobs) > self._capacity:
            raise DragomanError(
                f"max_new_tokens: expected at most {self.max_new_tokens}, the limit of all requests"
            )
        return DecodingHandle(pending, seconds=seconds, since=since, listener=listener)

    def submit(self, *handles: DecodingHandle, is_accepted: bool = False) -> None:
        """Add all inputs of a request to the queue, or none.

        Args:
            is_accepted: whether the request was accepted before

        Raises:
            OverloadedError, ClosedError, DeviceLostError: the engine accepts no jobs.
        """
        self._check_devices()
        jobs = [job for handle in handles for job in handle.jobs]
        self.queue.put([(job, job.strategy.width) for job in jobs], is_accepted=is_accepted)

    @property
    def steps(self) -> Sequence[Steps]:
        """The number of decoding steps on each GPU so far."""
        backends = {worker.backend for worker in self._decoding}
        return [backend.steps for backend in backends if backend.steps is not None]

    @property
    def rows(self) -> int:
        """The number of rows in use, in all batches."""
        return sum(worker.busy for worker in self._decoding)

    def _limited(self, options: GenerationOptions) -> GenerationOptions:
        if options.max_new_tokens is None:
            default = self.model.manifest.default_max_new_tokens
            if default > self.max_new_tokens:
                return options.replace(max_new_tokens=self.max_new_tokens)
        elif options.max_new_tokens > self.max_new_tokens:
            raise DragomanError(
                f"max_new_tokens: expected at most {self.max_new_tokens}, found "
                f"{shown(options.max_new_tokens)}"
            )
        return options


def check_outputs(sentences: int, outputs: int) -> None:
    """Refuse too many outputs of sentences, each of which has `outputs`."""
    if sentences * outputs > MOST_OUTPUTS:
        of_each = f" with {outputs} outputs each" if outputs > 1 else ""
        raise DragomanError(
            f"expected at most {MOST_OUTPUTS // outputs} sentences in all{of_each}, "
            f"found {sentences}"
        )


async def prepared(
    pool: Executor,
    prepare: Callable[[Any, GenerationOptions], DecodingHandle | Result],
    sources: Sequence[Any],
    options: Sequence[GenerationOptions],
) -> list[DecodingHandle | Result]:
    """Read sources in a thread, or a single one that is read quickly on the event loop."""
    if len(sources) == 1 and _is_read_quickly(sources[0], options[0]):
        return [prepare(sources[0], options[0])]
    read = map(prepare, sources, options)
    return await asyncio.get_running_loop().run_in_executor(pool, list, read)


def listener_of(arrived: asyncio.Queue[Part]) -> Callable[[Part], None]:
    """Return a listener for any thread that puts what is new into a queue of the running loop."""
    loop = asyncio.get_running_loop()

    def listen(new: Part) -> None:
        with suppress(RuntimeError):  # the event loop was closed before the stream
            loop.call_soon_threadsafe(arrived.put_nowait, new)

    return listen


async def tokens_of(
    engine: DecodingEngine, handle: DecodingHandle, arrived: Arrived, output: TokenStream
) -> AsyncGenerator[Token, None]:
    """Submit a request and yield its tokens; a closed generator cancels the request."""
    async with aclosing(arriving(engine, handle, arrived)) as items:
        async for selected in items:
            for token in output.tokens(selected):
                yield token
    for token in output.rest():
        yield token


async def arriving(
    engine: DecodingEngine, handle: DecodingHandle, arrived: asyncio.Queue[Sequence[Part] | None]
) -> AsyncGenerator[Sequence[Part], None]:
    """Submit a request and yield what is new of it; a closed generator cancels the request."""
    ended, loop = listener_of(arrived), asyncio.get_running_loop()
    handle.future.add_done_callback(lambda _: ended(None))
    try:
        engine.submit(handle)
        while (new := await next_of(arrived, loop)) is not None:
            yield new
    finally:
        handle.future.cancel()


async def next_of(arrived: asyncio.Queue[Part], loop: asyncio.AbstractEventLoop) -> Part:
    """Wait for what arrives next in a stream that began in an event loop."""
    if asyncio.get_running_loop() is not loop:
        raise DragomanError(
            "stream: expected the event loop in which the stream began, found another one; "
            "begin a stream in each event loop"
        )
    return await arrived.get()


def _is_read_quickly(source: Any, options: GenerationOptions) -> bool:
    """Return whether a source is short or was read before.

    With phrases, the whole vocabulary may have to be decoded first.
    """
    texts = (options.initial_prompt, options.hotwords, options.prefix)
    if any(len(text or ()) > SHORT_SOURCE for text in texts):
        return False
    if isinstance(source, Spectrogram):
        return True
    short = isinstance(source, str | list) and len(source) <= SHORT_SOURCE
    return short and not (options.must_contain or options.must_not_contain or options.prefix)


def threads_of(workers: int, threads: int) -> int:
    """Return the number of threads to load a model with.

    A worker computes in its own thread; the workers share the other threads.
    """
    return workers * (threads - 1) + 1


def rows_of(model: Model, batch_size: int | None, capacity: int, share: float) -> int:
    """Return the maximum number of rows of a worker's batch.

    Args:
        batch_size: requested number; None: `DEFAULT_BATCH_SIZE` on the processor; on a GPU as many
            as fit into its memory, see `Backend.rows_that_fit`
        capacity: target positions of a row
        share: share of the GPU's free memory that the batch may use
    """
    backend, spec = model.backend, model.manifest.model
    if batch_size is None:
        source = backend.limits.source or spec.max_source_positions if spec.has_encoder else 1
        batch_size = backend.rows_that_fit(source, capacity, share) or DEFAULT_BATCH_SIZE
    return min(batch_size, backend.limits.rows or batch_size)


def _capacity(model: Model, max_new_tokens: int | None) -> tuple[int, int]:
    """Return the maximum new tokens of a request, and the target positions of its rows."""
    manifest = model.manifest
    positions = manifest.executable.capacity or manifest.model.max_target_positions
    most = max_new_tokens or max(LONGEST_OUTPUT, manifest.default_max_new_tokens)
    most = min(most, positions)
    if manifest.speech is not None or not manifest.model.has_encoder:
        return most, positions  # prompts have any length
    return most, min(positions, 1 + len(manifest.generation.prompt) + most)
