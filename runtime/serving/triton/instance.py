"""A model in Triton, which serves requests with continuous batching."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from dragoman.errors import shown
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
from .responses import ResponseStream

POLL_SECONDS = 0.1
"""How often Triton is asked whether requests were cancelled: it does not notify a model."""
LIMITS = ServerOptions()

TRITON_PREFIX = "triton_"
"""Beginning of the names of parameters that Triton adds."""


@dataclass(frozen=True)
class InferenceRequest:
    """A parsed request of Triton.

    Attributes:
        options: options of decoding or encoding, by name
        stream: whether each token has its own response
        seconds: time limit; None: the server's
    """

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    stream: bool
    seconds: float | None


def read_request(request: Any) -> InferenceRequest:
    """Parse a request.

    Args:
        request: `pb_utils.InferenceRequest`

    Raises:
        BodyError, TensorError: the request is malformed.
    """
    tensors = {tensor.name(): _read_tensor(tensor) for tensor in request.inputs()}
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


def _read_tensor(tensor: Any) -> Tensor:
    values = tensor.as_numpy()
    return Tensor(tensor.name(), "BYTES" if values.dtype == np.object_ else "other", values)


class ModelInstance:
    """Serves requests of Triton with a model.

    Args:
        models, chosen: see `load_arranged`; `close` closes the models
        utils: module `triton_python_backend_utils`
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
        self._closing = Event()
        self._watcher = Thread(target=self._watch, name="watching", daemon=True)
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
        longest = LIMITS.timeout
        seconds = longest if read.seconds is None else min(read.seconds, longest)
        since = time.monotonic()
        self._readers.submit(self._start, responses, read, audio, since, seconds)

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
        since: float,
        seconds: float,
    ) -> None:
        try:
            if request.stream:
                self._check_stream()
            engine, head = self._engine, self._manifest.head
            if isinstance(engine, DecodingEngine):
                self._decode(engine, responses, request, audio, since, seconds)
            elif head is not None:
                self._run_encoder(engine, head, responses, request, since, seconds)
        except Exception as error:
            responses.fail(error)

    def _decode(
        self,
        engine: DecodingEngine,
        responses: ResponseStream,
        request: InferenceRequest,
        audio: OpenAudio,
        since: float,
        seconds: float,
    ) -> None:
        options = generation_options(request.options)
        sources = self._sources(request.tensors, audio)
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
            engine.prepare(source, options, since=since, seconds=seconds, listener=listener)
            for source in sources
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
        since: float,
        seconds: float,
    ) -> None:
        splits = {"split_special_tokens": LIMITS.split_special_tokens}
        method, options = encoder_call(head, splits | request.options)
        handle = EncoderHandle(
            method, texts_of(request.tensors), options, since=since, seconds=seconds
        )
        future = handle.future
        responses.end_after([future], lambda: [encoder_tensors(head, future.result())])
        engine.submit(handle)

    def _sources(self, tensors: Mapping[str, Tensor], audio: OpenAudio) -> Sequence[Any]:
        settings = self._manifest.audio
        if settings is None:
            return texts_of(tensors)
        return self._audio.read(audio, files_of(tensors), settings)

    def _check_stream(self) -> None:
        if self._manifest.head is not None:
            raise BodyError("stream: expected a model that decodes, found an encoder-only model")
        if not self._streaming:
            raise BodyError("stream: this model was deployed with --no-streaming")

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
    """Load a model of a repository.

    Args:
        args: arguments of Triton's `initialize`
        utils: module `triton_python_backend_utils`

    Raises:
        DragomanError: the bundle cannot be loaded, or the configuration is invalid.
    """
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
