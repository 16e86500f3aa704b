"""A model in Triton, with continuous batching."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import DragomanError, shown
from dragoman.settings.head import Head

from ...decoding.results import Result, Token
from ...decoding.running_batch import SelectedToken
from ...decoding.scheduler import Observer
from ...format.bundle import read_bundle
from ...model import Model
from ...texts.outputs import TokenStream
from ..apis.bodies import BodyError, generation_options, json_object
from ..apis.open_inference import (
    PROTOCOL_PARAMETERS,
    Tensor,
    TensorError,
    bytes_tensor,
    decoder_tensors,
    encoder_call,
    encoder_tensors,
    files_of,
    texts_of,
)
from ..arrangement import Arrangement, load_arranged
from ..audio_reading import AudioReader, OpenAudio
from ..engine.encoder_engine import EncoderEngine, EncoderHandle, open_engine
from ..engine.engine import READING_THREADS, DecodingEngine
from ..options import EngineOptions, ServerOptions
from .repository import BUNDLE, OPTIONS, deployment_of

POLL_SECONDS = 0.1
"""How often Triton is asked whether requests were cancelled: it does not notify a model."""
LIMITS = ServerOptions()

TRITON_PREFIX = "triton_"
"""Beginning of the names of parameters that Triton adds."""


@dataclass(frozen=True)
class InferenceRequest:
    """A parsed request of Triton."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    stream: bool
    """Whether each token has its own response."""
    seconds: float | None
    """Time limit; None: the server's."""


def read_request(request: Any) -> InferenceRequest:
    """Parse a request.

    Args:
        request: `pb_utils.InferenceRequest`

    Raises:
        BodyError, TensorError: the request is malformed.
    """
    tensors = {}
    for tensor in request.inputs():
        name, values = tensor.name(), tensor.as_numpy()
        datatype = "BYTES" if values.dtype == np.object_ else "other"
        tensors[name] = Tensor(name, datatype, values)
    parameters = json_object((request.parameters() or "{}").encode())
    options = {
        name: value
        for name, value in parameters.items()
        if name not in PROTOCOL_PARAMETERS and not name.startswith(TRITON_PREFIX)
    }
    more = tensors.pop(OPTIONS, None)
    if more is not None:
        if more.datatype != "BYTES" or more.values.size != 1:
            raise TensorError(f"{OPTIONS}: expected one JSON object in BYTES")
        options |= json_object(bytes(more.values.item()))
    stream = options.pop("stream", False)
    if not isinstance(stream, bool):
        raise BodyError(f"stream: expected true or false, found {shown(stream)}")
    microseconds = request.timeout()
    seconds = microseconds / 1e6 if microseconds else None
    return InferenceRequest(tensors, options, stream, seconds)


MakeResponses = Callable[[], Sequence[Sequence[Tensor]]]
"""Makes the tensors of each response."""


class ResponseStream:
    """Sends the responses to a request.

    Args:
        sender: `pb_utils.InferenceResponseSender` of the request
        utils: module `triton_python_backend_utils`
        executor: executor with one thread, so that decoding goes on while responses are sent
        on_end: called after the last response
    """

    def __init__(
        self, sender: Any, utils: Any, executor: Executor, on_end: Callable[[ResponseStream], None]
    ) -> None:
        self._sender, self._utils, self._executor = sender, utils, executor
        self._on_end, self._ended = on_end, False
        self._futures: Sequence[Future[Any]] = ()
        self._lock = threading.Lock()

    def send(self, make: MakeResponses) -> None:
        """Send responses that are not the last."""
        self._executor.submit(self._send, make, last=False)

    def end(self, make: MakeResponses) -> None:
        """Send the last responses."""
        self._executor.submit(self._send, make, last=True)

    def fail(self, error: Exception) -> None:
        """Send an error as the last response."""

        def make() -> Sequence[Sequence[Tensor]]:
            raise error

        self.end(make)

    def end_after(self, futures: Sequence[Future[Any]], make: MakeResponses) -> None:
        """Send the last responses once all futures are done; if one fails, cancel the others."""
        self._futures, left = futures, len(futures)

        def checked() -> Sequence[Sequence[Tensor]]:
            for future in futures:
                if not future.cancelled():
                    future.result()
            return make()

        def done(future: Future[Any]) -> None:
            nonlocal left
            if future.cancelled() or future.exception() is not None:
                self.cancel()
            with self._lock:
                left -= 1
                last = not left
            if last:
                self.end(checked)

        if not futures:
            self.end(checked)
        for future in futures:
            future.add_done_callback(done)

    def cancel(self) -> None:
        """Cancel the request. Its rows are freed at the next step."""
        futures, self._futures = self._futures, ()  # each cancelled future calls this again
        for future in futures:
            future.cancel()

    def cancel_if_requested(self) -> bool:
        """Return whether the client has cancelled; call only on the executor's thread."""
        if self._ended or not self._sender.is_cancelled():
            return False
        self.cancel()
        return True

    def _send(self, make: MakeResponses, *, last: bool) -> None:
        if self._ended:
            return
        try:
            responses = [
                self._utils.InferenceResponse(
                    [self._utils.Tensor(tensor.name, tensor.values) for tensor in tensors]
                )
                for tensors in make()
            ]
        except Exception as error:
            responses, last = [self._utils.InferenceResponse(error=self._error(error))], True
        try:
            for number, response in enumerate(responses, 1):
                final = last and number == len(responses)
                flags = self._utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
                self._sender.send(response, flags)
        except Exception as error:  # the server failed; no response is possible
            self._utils.Logger.log_error(f"a response could not be sent: {error}")
            last = True
        if last:
            self._ended = True
            self.cancel()
            self._on_end(self)

    def _error(self, error: Exception) -> Any:
        make = self._utils.TritonError
        if isinstance(error, CancelledError):
            return make("the request was cancelled", make.CANCELLED)
        status = error.status if isinstance(error, DragomanError) else None
        if status in (429, 503, 504):
            return make(str(error), make.UNAVAILABLE)
        if status is not None and status < 500:
            return make(str(error), make.INVALID_ARG)
        self._utils.Logger.log_error("".join(traceback.format_exception(error)))
        reason = "the server failed; see its log" if status is None else str(error)
        return make(reason, make.INTERNAL)


class ModelInstance:
    """Serves requests of Triton with a model.

    Args:
        models, chosen: see `load_arranged`
        streaming: whether a request may have a response for each token
    """

    def __init__(
        self, models: Sequence[Model], chosen: Arrangement, utils: Any, *, streaming: bool
    ) -> None:
        self._utils, self._streaming = utils, streaming
        self._manifest = models[0].manifest
        self._engine = open_engine(
            *models,
            workers=chosen.workers,
            batch_size=chosen.batch_size,
            observer=_TritonLog(utils),
        )
        self._readers = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="reading")
        self._sending = ThreadPoolExecutor(1, thread_name_prefix="sending")
        self._audio = AudioReader(LIMITS.max_audio, LIMITS.max_open_audio)
        self._open: dict[ResponseStream, OpenAudio] = {}
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watching", daemon=True)
        self._watcher.start()

    def submit(self, request: Any) -> None:
        """Accept a `pb_utils.InferenceRequest`; its responses are sent later."""
        sender = request.get_response_sender()
        responses = ResponseStream(sender, self._utils, self._sending, self._forget)
        self._open[responses] = audio = OpenAudio()
        try:
            read = read_request(request)
        except Exception as error:  # other requests must continue
            responses.fail(error)
            return
        seconds = min(read.seconds or LIMITS.timeout, LIMITS.timeout)
        limits: dict[str, Any] = {"since": time.monotonic(), "seconds": seconds}
        self._readers.submit(self._start, responses, read, audio, limits)

    def close(self) -> None:
        """Finish all accepted requests, and close the model."""
        self._readers.shutdown()
        self._engine.close()
        self._closing.set()
        self._watcher.join()
        self._sending.shutdown()

    def _start(
        self,
        responses: ResponseStream,
        request: InferenceRequest,
        audio: OpenAudio,
        limits: dict[str, Any],
    ) -> None:
        engine, head = self._engine, self._manifest.head
        try:
            if request.stream and head is not None:
                raise BodyError(
                    "stream: expected a model that decodes, found an encoder-only model"
                )
            if request.stream and not self._streaming:
                raise BodyError("stream: this model was deployed with --no-streaming")
            if isinstance(engine, DecodingEngine):
                self._decode(engine, responses, request, audio, limits)
            elif head is not None:
                self._run_encoder(engine, head, responses, request, limits)
        except Exception as error:
            responses.fail(error)

    def _decode(
        self,
        engine: DecodingEngine,
        responses: ResponseStream,
        request: InferenceRequest,
        audio: OpenAudio,
        limits: dict[str, Any],
    ) -> None:
        options, settings = generation_options(request.options), self._manifest.audio
        sources: Sequence[Any] = (
            texts_of(request.tensors)
            if settings is None
            else self._audio.read(audio, files_of(request.tensors), settings)
        )
        if options.split_special_tokens is None:
            options = options.replace(split_special_tokens=LIMITS.split_special_tokens)
        listener = output = None
        if request.stream:
            if len(sources) != 1:
                raise BodyError(f"stream: expected one input, found {len(sources)}")
            texts = engine.model.text_stream(skip_special_tokens=options.skip_special_tokens)
            output = TokenStream(texts)

            def listener(choices: Sequence[SelectedToken]) -> None:
                responses.send(lambda: list(map(_token_tensors, output.tokens(choices))))

        prepared = [
            engine.prepare(source, options, **limits, listener=listener) for source in sources
        ]
        handles = [one for one in prepared if not isinstance(one, Result)]

        def make() -> list[list[Tensor]]:
            results = [r if isinstance(r, Result) else r.future.result() for r in prepared]
            for warning in (line for result in results for line in result.warnings):
                self._utils.Logger.log_warn(warning)
            rest = [] if output is None else [_token_tensors(token) for token in output.rest()]
            return [*rest, decoder_tensors(results)]

        responses.end_after([handle.future for handle in handles], make)
        engine.submit(*handles)

    def _run_encoder(
        self,
        engine: EncoderEngine,
        head: Head,
        responses: ResponseStream,
        request: InferenceRequest,
        limits: dict[str, Any],
    ) -> None:
        splits = {"split_special_tokens": LIMITS.split_special_tokens}
        method, options = encoder_call(head, splits | request.options)
        handle = EncoderHandle(method, texts_of(request.tensors), options, **limits)
        future = handle.future
        responses.end_after([future], lambda: [encoder_tensors(head, future.result())])
        engine.submit(handle)

    def _watch(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            # A sender must not be used after its last response, so only one thread uses it.
            error = self._sending.submit(self._cancel_requested).exception()
            if error is not None:
                self._utils.Logger.log_error(f"cancelled requests cannot be found: {error}")

    def _cancel_requested(self) -> None:
        for responses, audio in list(self._open.items()):
            if responses.cancel_if_requested():
                self._audio.close(audio)

    def _forget(self, responses: ResponseStream) -> None:
        audio = self._open.pop(responses, None)
        if audio is not None:
            self._audio.close(audio)


def open_instance(args: Mapping[str, str], utils: Any) -> ModelInstance:
    """Load a model of a repository with the arguments of Triton's `initialize`."""
    deployment = deployment_of(json.loads(args["model_config"]))
    directory = Path(args["model_repository"], args["model_version"], BUNDLE)
    on_gpu = args["model_instance_kind"] == "GPU"
    options = EngineOptions(
        devices=(f"cuda:{args['model_instance_device_id']}",) if on_gpu else (),
        workers=deployment.workers,
        threads=deployment.threads,
        batch_size=deployment.batch_size,
    )
    models, chosen = load_arranged(read_bundle(directory, remembered=True), options)
    return ModelInstance(models, chosen, utils, streaming=deployment.streaming)


class _TritonLog(Observer):
    def __init__(self, utils: Any) -> None:
        self._utils = utils

    def failed(self, reason: str) -> None:
        self._utils.Logger.log_error(reason)


def _token_tensors(token: Token) -> list[Tensor]:
    text = str(token.id) if token.text is None and not token.is_end else token.text or ""
    values = np.array([token.log_probability], np.float32)
    return [bytes_tensor("text", [text]), Tensor("log_probability", "FP32", values)]
