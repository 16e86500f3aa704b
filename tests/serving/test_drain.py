"""Requests that a server cannot finish before it ends get an error of their protocol."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from dragoman.runtime import Model
from dragoman.runtime.encoding.front_end import EncoderFrontEnd
from dragoman.runtime.serving.apis import native, openai
from dragoman.runtime.serving.apis.http import Drain, Endpoint, Events, Protocol
from dragoman.runtime.serving.audio_reading import AudioReader
from dragoman.runtime.serving.options import ListenOptions

from ..speech_models import noise
from .conftest import running
from .test_audio import wav
from .test_process import uploading
from .test_requests import Gate, gate

__all__ = ["gate"]

Bundles = Callable[[str], Path]
GENERATE = "/v1/generate"
SPEECH = {"model": "speech"}
CLOSED = "the server is shutting down"
NATIVE = {"error": CLOSED, "code": "shutting_down"}
OPENAI = {
    "error": {"message": CLOSED, "type": "server_error", "param": None, "code": "shutting_down"}
}


class Blocked:
    """Holds calls of a function until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.reached, self._released = threading.Semaphore(0), threading.Event()
        original = getattr(owner, name)

        def held(*arguments: Any, **options: Any) -> Any:
            self.reached.release()
            assert self._released.wait(60)
            return original(*arguments, **options)

        patch.setattr(owner, name, held)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[Blocked]]:
    """Batches of encoders, attention and the reading of audio."""
    found = [
        Blocked(monkeypatch, EncoderFrontEnd, "embeddings"),
        Blocked(monkeypatch, Model, "attention"),
        Blocked(monkeypatch, AudioReader, "read"),
    ]
    yield found
    for each in found:
        each.release()


def test_requests_beyond_the_time_to_drain(
    bundle: Bundles, gate: Gate, blocked: Sequence[Blocked], caplog: pytest.LogCaptureFixture
) -> None:
    directories = {"tiny-en-es": bundle("letters")}
    directories |= {name: bundle(name) for name in ("vectors", "speech")}
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    file = wav(noise(0.5, 1))
    letters = {"model": "tiny-en-es", "source": "dragoman"}
    posts: list[tuple[str, dict[str, Any], Any]] = [
        # One of them is decoded, the others wait for its row.
        (GENERATE, {"json": letters}, NATIVE),
        (GENERATE, {"json": letters | {"stream": True}}, NATIVE),
        ("/v2/models/tiny-en-es/infer", {"json": {"inputs": [text]}}, {"error": CLOSED}),
        ("/translate", {"json": {"q": "a", "source": "en", "target": "es"}}, {"error": CLOSED}),
        # The others are in threads.
        ("/v1/embeddings", {"json": {"model": "vectors", "input": "the man"}}, OPENAI),
        ("/v1/attention", {"json": letters | {"target": "D"}}, NATIVE),
        (
            "/v1/audio/transcriptions",
            {"files": {"file": file}, "data": {"model": "speech"}},
            OPENAI,
        ),
        (
            GENERATE,
            {"json": {"model": "speech", "audio": base64.b64encode(file).decode()}},
            NATIVE,
        ),
    ]
    caplog.set_level(logging.INFO)
    listen = ListenOptions(port=0, drain_seconds=0)
    with (
        running(directories, listen, engine={"batch_size": 1}) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(len(posts)) as pool,
    ):
        with uploading(url) as connection, connection.makefile("rb") as received:
            sent: list[Future[httpx.Response]] = [
                pool.submit(client.post, path, **body) for path, body, _ in posts
            ]
            assert gate.reached.acquire(timeout=60)
            for each in (*blocked, blocked[-1]):
                assert each.reached.acquire(timeout=60)
            waiting = 'dragoman_queue_length{model="tiny-en-es"} 3.0'
            while waiting not in client.get("/metrics").text:
                pass  # until all wait
            server.should_exit = True
            for future, (path, _, expected) in zip(sent, posts, strict=True):
                answer = future.result()
                assert (answer.status_code, answer.json()) == (503, expected), path
                assert answer.headers["Retry-After"] == "1"
            assert received.read().partition(b"HTTP/1.1 503 ")[2].endswith(json_of(NATIVE))
        gate.open()
        for each in blocked:
            each.release()
    logged = [vars(record) for record in caplog.records if record.getMessage() == "request"]
    ended = [each["status"] for each in logged if each["route"] != "/metrics"]
    assert ended == [503] * (len(posts) + 1)
    assert not [each for each in caplog.records if each.exc_info or each.levelname == "ERROR"]


def json_of(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def test_a_stream_ends_with_an_event(
    bundle: Bundles, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body = {"source": "interpreters", "stream": True}
    listen = ListenOptions(port=0, drain_seconds=0)
    gate.let(1)
    with (
        running({"letters": bundle("letters")}, listen) as (server, url),
        httpx.stream("POST", f"{url}{GENERATE}", json=body, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        assert "id" in json.loads(next(lines).removeprefix("data: "))
        server.should_exit = True
        *_, event, data, last = lines  # to the end, which httpx checks
        gate.open()
    assert (event, last) == ("event: error", "")
    assert json.loads(data.removeprefix("data: ")) == NATIVE
    (logged,) = [vars(record) for record in caplog.records if record.getMessage() == "request"]
    assert logged["status"] == 503
    assert not [record for record in caplog.records if record.exc_info]


class Service:
    """What routes know of a service."""

    def __init__(self) -> None:
        self.drain = Drain()


@pytest.mark.parametrize(
    ("protocol", "event", "body"),
    [
        (openai.PROTOCOL, "", OPENAI),
        (native.PROTOCOL, "event: error\n", NATIVE),
    ],
)
def test_events_and_later_requests(protocol: Protocol, event: str, body: Any) -> None:
    """A running stream ends with the protocol's event, and a new request gets status 503."""
    service = Service()

    async def events() -> AsyncGenerator[str, None]:
        yield "data: 1\n\n"
        service.drain.begin(0)
        await asyncio.Future()

    async def stream(service: Any, request: Request) -> Response:
        return Events(events())

    endpoint = Endpoint("/", stream)
    app = Starlette(routes=dataclasses.replace(protocol, endpoints=(endpoint,)).routes(service))

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return [await client.post("/") for _ in range(2)]

    first, second = asyncio.run(answers())
    assert first.text == f"data: 1\n\n{event}data: {json.dumps(body)}\n\n"
    assert (second.status_code, second.json()) == (503, body)
    assert second.headers["Retry-After"] == "1"
