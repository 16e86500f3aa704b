"""Live speech over a WebSocket.

The first message is a JSON object: `model`, `api_key`, and the options of `Model.listen`. Binary
messages are samples as `dragoman listen` reads them, and `{"end": true}` ends them. The answers are
the objects of `dragoman listen --json`; an error is the last one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions

from ...arguments import DeadlineError, check_able
from ...audio import AudioError
from ...decoding.results import LiveUpdate, json_of_update
from ...model import Model
from ..audio_reading import RETRY_AFTER
from ..engine.engine import DecodingEngine, listener_of
from ..engine.request_queue import OverloadedError
from ..service import Service
from .bodies import BodyError, generation_options, json_object
from .http import MODEL, reported_error

logger = logging.getLogger("dragoman.serving")

PATH = "/v1/listen"
MOST_LISTENERS = 8
"""Streams at once; each has a thread."""
WAITING_SECONDS = 60.0
"""How long a client may send nothing."""
SECONDS_AHEAD = 600.0
"""Seconds of audio that may wait to be decoded."""
CLOSE_REFUSED, CLOSE_FAILED, CLOSE_BUSY = 1008, 1011, 1013
"""Status codes of RFC 6455, section 7.4.1, and of IANA's registry."""


def route(service: Service) -> WebSocketRoute:
    """Return the route of live speech."""
    return WebSocketRoute(PATH, _Listeners(service).listen)


class _Listeners:
    def __init__(self, service: Service) -> None:
        self._service, self._count = service, 0
        self._pool = ThreadPoolExecutor(MOST_LISTENERS, thread_name_prefix="listening")

    async def listen(self, websocket: WebSocket) -> None:
        await websocket.accept()
        began = time.monotonic()
        try:
            await self._listen(websocket)
            await websocket.close()
        except WebSocketDisconnect:
            pass
        except Exception as error:
            known = reported_error(error)
            code = CLOSE_REFUSED if known.status < 500 else CLOSE_FAILED
            code = CLOSE_BUSY if isinstance(error, OverloadedError) else code
            with suppress(RuntimeError, WebSocketDisconnect):  # the client is gone
                await websocket.send_text(json.dumps({"error": str(known), "code": known.code}))
                await websocket.close(code)
        seconds = round(time.monotonic() - began, 3)
        name = websocket.scope.get(MODEL)
        logger.info("live speech", extra={"path": PATH, "model": name, "seconds": seconds})

    async def _listen(self, websocket: WebSocket) -> None:
        service = self._service
        values = json_object(str(await _received(websocket, str)).encode())
        service.api_keys.check(websocket.headers, values.pop("api_key", None))
        service.drain.check()
        served = service.models.get(values.pop("model", None))
        websocket.scope[MODEL] = served.name
        check_able(served.manifest, "transcribe")
        options = generation_options(values, ["model", "api_key"])
        if self._count >= MOST_LISTENERS:
            raise OverloadedError(
                f"expected at most {MOST_LISTENERS} streams of live speech; try again later",
                RETRY_AFTER,
            )
        self._count += 1
        try:
            async with served.engine(DecodingEngine) as engine:
                if (options.num_beams or 1) > engine.batch_size:
                    raise DragomanError(
                        f"num_beams: expected at most {engine.batch_size}, the rows of a batch, "
                        f"found {shown(options.num_beams)}"
                    )
                stream = _Stream(engine.model, options, service.options.max_audio)
                with service.drain.on_expiry(stream.stop):
                    await stream.run(websocket, self._pool)
        finally:
            self._count -= 1


class _Stream:
    """A stream of at most `longest` seconds between the client's event loop and its thread."""

    def __init__(self, model: Model, options: GenerationOptions, longest: float) -> None:
        audio = model.manifest.audio
        rate = 0 if audio is None else audio.sampling_rate
        self._model, self._options, self._bytes_of_second = model, options, 2 * rate
        self._longest = longest
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._updates: asyncio.Queue[LiveUpdate | Exception | None] = asyncio.Queue()
        self._notify = listener_of(self._updates)
        self._cancel = threading.Event()
        self._received = self._decoded = 0  # bytes

    async def run(self, websocket: WebSocket, pool: ThreadPoolExecutor) -> None:
        decoding = asyncio.get_running_loop().run_in_executor(pool, self._decode)
        receiving = asyncio.create_task(self._receive(websocket))
        try:
            while (update := await self._updates.get()) is not None:
                if isinstance(update, Exception):
                    raise update
                await websocket.send_text(json_of_update(update))
        finally:
            self.stop()
            receiving.cancel()
            await decoding

    def stop(self) -> None:
        self._cancel.set()
        self._chunks.put(None)

    async def _receive(self, websocket: WebSocket) -> None:
        try:
            while True:
                message = await _received(websocket, bytes | str)
                if isinstance(message, str):
                    if json_object(message.encode()) != {"end": True}:
                        raise BodyError('expected samples, or {"end": true}')
                    break
                self._received += len(message)
                if self._received > self._longest * self._bytes_of_second:
                    raise AudioError(f"expected at most {self._longest:g} s of audio, found more")
                self._chunks.put(message)
                if self._received - self._decoded > SECONDS_AHEAD * self._bytes_of_second:
                    raise OverloadedError(
                        f"expected at most {SECONDS_AHEAD:g} s of audio before it is decoded",
                        RETRY_AFTER,
                    )
        except Exception as error:
            self._cancel.set()
            self._updates.put_nowait(error)
        self._chunks.put(None)

    def _decode(self) -> None:
        last: Exception | None = None
        try:
            for update in self._model.listen(self._audio(), self._options, cancel=self._cancel):
                self._notify(update)
        except Exception as error:
            last = error
        self._notify(last)

    def _audio(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            yield chunk
            self._decoded += len(chunk)


async def _received(websocket: WebSocket, kind: Any) -> str | bytes:
    try:
        message = await asyncio.wait_for(websocket.receive(), WAITING_SECONDS)
    except TimeoutError as error:
        raise DeadlineError(f"expected a message within {WAITING_SECONDS:g} s") from error
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000), message.get("reason"))
    text, data = message.get("text"), message.get("bytes")
    found: str | bytes = data if isinstance(data, bytes) else str(text)
    accepted: bool = isinstance(found, kind)
    if not accepted:
        raise BodyError("expected a JSON object as the first message, found samples")
    return found
