"""Triton's requests -> tickets of an engine, whose batch they enter and leave at any step."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from ...audio.reading import read_audio
from ...decoding.results import Result, Token
from ...decoding.streaming import Choice
from ...format.bundle import read_bundle
from ...format.head import Head
from ...loading import load
from ...model import Model
from ..apis.bodies import BodyError
from ..apis.open_inference import (
    bytes_tensor,
    decoded_tensors,
    files_of,
    read_tensors,
    reading_of,
    texts_of,
)
from ..apis.options import generation_options
from ..apis.tensors import Tensor
from ..arrangement import Arrangement, arrangement
from ..engine.engine import Engine, threads_of
from ..engine.observer import Nobody, Observer
from ..engine.texts import TextsEngine, TextsTicket
from ..options import ServerOptions
from .answer import Answer
from .config import deployment_of
from .repository import BUNDLE
from .requests import Asked, asked_of

READERS = 4
"""Threads that read texts and audio."""
LOOK_SECONDS = 0.1
"""How often Triton is asked whether requests are still wanted: it does not say it by itself."""
LIMITS = ServerOptions()


class Answering:
    """
    Args:
        model: loaded with `threads_of(chosen.loops, chosen.threads)`; is closed with this
        utils: the module `triton_python_backend_utils`
        streaming: whether a request may have an answer for each token
    """

    def __init__(self, model: Model, chosen: Arrangement, utils: Any, *, streaming: bool) -> None:
        self._utils, self._streaming = utils, streaming
        self._manifest = model.manifest
        self._engine = _engine(model, chosen, _Log(utils))
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reading")
        self._sending = ThreadPoolExecutor(1, thread_name_prefix="sending")
        self._open: dict[Answer, None] = {}
        self._closing = Event()
        self._watcher = Thread(target=self._watch, name="watching", daemon=True)
        self._watcher.start()

    def begin(self, request: Any) -> None:
        """Take a `pb_utils.InferenceRequest`, which is answered later."""
        sender = request.get_response_sender()
        answer = Answer(sender, self._utils, self._sending, self._forget)
        self._open[answer] = None
        try:
            asked = asked_of(request)
        except Exception as error:  # whatever is wrong with one request, others go on
            answer.fail(error)
            return
        longest = LIMITS.longest_request
        seconds = longest if asked.seconds is None else min(asked.seconds, longest)
        self._readers.submit(self._enter, answer, asked, time.monotonic() + seconds)

    def close(self) -> None:
        """Answer all that was taken, and free the model."""
        self._readers.shutdown()
        self._engine.close()
        self._closing.set()
        self._watcher.join()
        self._sending.shutdown()

    def _enter(self, answer: Answer, asked: Asked, deadline: float) -> None:
        try:
            if asked.stream:
                self._check_stream()
            engine, head = self._engine, self._manifest.head
            if isinstance(engine, Engine):
                self._decode(engine, answer, asked, deadline)
            elif head is not None:
                self._read(engine, head, answer, asked, deadline)
        except Exception as error:
            answer.fail(error)

    def _decode(self, engine: Engine, answer: Answer, asked: Asked, deadline: float) -> None:
        options, sources = generation_options(asked.options), self._sources(asked.tensors)
        listener = None
        if asked.stream:
            if len(sources) != 1:
                raise BodyError(f"stream: expected one input, found {len(sources)}")
            output = engine.model.token_stream()

            def listener(choices: Sequence[Choice]) -> None:
                answer.tell(lambda: list(map(_token_tensors, output.tokens(choices))))

        prepared = [
            engine.prepare(source, options, deadline=deadline, listener=listener)
            for source in sources
        ]
        tickets = [one for one in prepared if not isinstance(one, Result)]

        def made() -> list[list[Tensor]]:
            results = [r if isinstance(r, Result) else r.future.result() for r in prepared]
            return [decoded_tensors(results)]

        answer.follow([ticket.future for ticket in tickets], made)
        engine.enter(*tickets)

    def _read(
        self, engine: TextsEngine, head: Head, answer: Answer, asked: Asked, deadline: float
    ) -> None:
        method, options = reading_of(head, asked.options)
        ticket = TextsTicket(method, texts_of(asked.tensors), options, deadline=deadline)
        answer.follow([ticket.future], lambda: [read_tensors(head, ticket.future.result())])
        engine.enter(ticket)

    def _sources(self, tensors: Mapping[str, Tensor]) -> Sequence[Any]:
        audio = self._manifest.audio
        if audio is None:
            return texts_of(tensors)
        return [
            read_audio(file, audio.sampling_rate, longest=LIMITS.audio_seconds)
            for file in files_of(tensors)
        ]

    def _check_stream(self) -> None:
        if self._manifest.head is not None:
            raise BodyError("stream: expected a model that decodes, found an encoder alone")
        if not self._streaming:
            raise BodyError("stream: this model was deployed with --no-streaming")

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            # A sender must not be asked after the last response, and one thread sends them.
            error = self._sending.submit(self._look).exception()
            if error is not None:
                self._utils.Logger.log_error(f"Triton does not say what is cancelled: {error}")

    def _look(self) -> None:
        for answer in list(self._open):
            answer.cancel_if_unwanted()

    def _forget(self, answer: Answer) -> None:
        self._open.pop(answer, None)


def open_model(args: Mapping[str, str], utils: Any) -> Answering:
    """The model of a repository.

    Args:
        args: what Triton tells a model when it is loaded

    Raises:
        DragomanError: its bundle cannot be loaded, or its configuration says what cannot be.
    """
    deployment = deployment_of(json.loads(args["model_config"]))
    directory = Path(args["model_repository"], args["model_version"], BUNDLE)
    chosen = arrangement(
        read_bundle(directory).manifest,
        loops=deployment.loops,
        threads=deployment.threads,
        rows=deployment.rows,
    )
    model = load(directory, threads=threads_of(chosen.loops, chosen.threads))
    return Answering(model, chosen, utils, streaming=deployment.streaming)


def _engine(model: Model, chosen: Arrangement, observer: Observer) -> Engine | TextsEngine:
    kind = Engine if model.manifest.head is None else TextsEngine
    return kind(model, loops=chosen.loops, rows=chosen.rows, observer=observer)


class _Log(Nobody):
    """What goes wrong that is no request's fault is in Triton's log."""

    def __init__(self, utils: Any) -> None:
        self._utils = utils

    def failed(self, reason: str) -> None:
        self._utils.Logger.log_error(reason)


def _token_tensors(token: Token) -> list[Tensor]:
    text = str(token.id) if token.text is None else token.text
    chance = Tensor("log_probability", "FP32", np.array([token.log_probability], np.float32))
    return [bytes_tensor("text", [text]), chance]
