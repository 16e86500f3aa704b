"""Live speech over WebSockets: what is answered, errors, limits, several clients at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dragoman.runtime import LiveUpdate, Model
from dragoman.runtime.decoding.results import json_of_update
from dragoman.runtime.serving.apis import live

from ..speech_models import RATE, noise
from .conftest import serving

Bundles = Callable[[str], Path]
Models = Callable[[str], Model]

RAW = np.round(noise(3.3, 12) * 2**15).astype("<i2").tobytes()
FIRST: dict[str, Any] = {"model": "speech", "language": "de", "vad": False}


@pytest.fixture(scope="module")
def client(bundle: Bundles) -> Iterator[httpx.Client]:
    names = ("speech", "letters")
    with serving({name: bundle(name) for name in names}, max_audio=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(model: Models) -> list[LiveUpdate]:
    return list(model("speech").listen([RAW], language="de", vad=False))


def opened(client: httpx.Client, path: str = "/v1/listen", **headers: str) -> ClientConnection:
    url = f"ws://127.0.0.1:{client.base_url.port}{path}"
    return connect(url, additional_headers=headers, proxy=None)


def answers(socket: ClientConnection) -> list[dict[str, Any]]:
    found = []
    try:
        while True:
            found.append(json.loads(socket.recv(timeout=60)))
    except ConnectionClosed:
        return found


def said(client: httpx.Client, size: int, **options: Any) -> list[dict[str, Any]]:
    with opened(client) as socket:
        socket.send(json.dumps(FIRST | options))
        for begin in range(0, len(RAW), size):
            socket.send(RAW[begin : begin + size])
        socket.send('{"end": true}')
        found = answers(socket)
        assert socket.close_code == 1000
    return found


def plain(updates: list[LiveUpdate]) -> list[dict[str, Any]]:
    return [json.loads(json_of_update(update)) for update in updates]


@pytest.mark.parametrize("size", [333, 3200, len(RAW)])
def test_the_answers_are_those_of_the_library(
    client: httpx.Client, expected: list[LiveUpdate], size: int
) -> None:
    assert said(client, size) == plain(expected)


def test_words_are_sent_while_others_arrive(
    client: httpx.Client, expected: list[LiveUpdate], model: Models
) -> None:
    with opened(client) as socket:
        socket.send(json.dumps(FIRST | {"word_timestamps": True}))
        socket.send(RAW[: 3 * RATE])
        words = list(model("speech").listen([RAW], language="de", vad=False, word_timestamps=True))
        first = json.loads(socket.recv(timeout=60))  # the stream goes on
        socket.send(RAW[3 * RATE :])
        socket.send('{"end": true}')
        assert [first, *answers(socket)] == plain(words)


def test_noise_is_no_speech(client: httpx.Client) -> None:
    assert said(client, 3200, vad=None) == []


def test_several_clients_at_once(client: httpx.Client, expected: list[LiveUpdate]) -> None:
    """Beside them, requests are answered."""
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(said, client, 1000 + n) for n in range(3)]
        answer = client.post("/v1/generate", json={"model": "letters", "source": "dragoman"})
        assert answer.status_code == 200
        assert [stream.result() for stream in streams] == [plain(expected)] * 3


@pytest.mark.parametrize(
    ("messages", "code", "problem"),
    [
        (["no JSON"], 1008, "expected a JSON object"),
        ([RAW[:100]], 1008, "expected a JSON object as the first message, found samples"),
        (['{"model": "nobody"}'], 1008, "nobody"),
        (['{"model": "letters"}'], 1008, "transcribe: "),
        (['{"model": "speech", "langage": "de"}'], 1008, "langage"),
        (['{"model": "speech", "language": "xx"}'], 1008, "language: expected one of"),
        (['{"model": "speech", "num_beams": 65}'], 1008, "num_beams: expected at most 64"),
        (['{"model": "speech", "fallback": true}'], 1008, "fallback: for recordings"),
        ([json.dumps(FIRST), '{"stop": true}'], 1008, 'expected samples, or {"end": true}'),
        ([json.dumps(FIRST), b"\x00", '{"end": true}'], 1008, "found one byte more"),
    ],
)
def test_mistakes(
    client: httpx.Client, messages: list[str | bytes], code: int, problem: str
) -> None:
    with opened(client) as socket:
        for message in messages:
            socket.send(message)
        *_, last = answers(socket)
        assert problem in last["error"] and last["code"] and socket.close_code == code


def test_audio_has_a_limit(client: httpx.Client) -> None:
    silence = bytes(2 * RATE * 10)
    with opened(client) as socket:
        socket.send(json.dumps(FIRST | {"vad": True}))
        for _ in range(7):
            socket.send(silence)
        (last,) = answers(socket)
    assert last["error"] == "expected at most 60 s of audio, found more"


def test_a_client_that_stops_sending(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WAITING_SECONDS", 0.2)
    with opened(client) as socket:
        (last,) = answers(socket)
    assert (last["error"], last["code"]) == ("expected a message within 0.2 s", "timeout")


def test_a_client_that_leaves_frees_its_thread(
    client: httpx.Client, expected: list[LiveUpdate], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2 * live.MOST_LISTENERS):
        with opened(client) as socket:
            socket.send(json.dumps(FIRST))
            socket.send(RAW[: 2 * RATE])
    assert said(client, 3200) == plain(expected)


def test_too_many_streams(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_LISTENERS", 1)
    with serving({"speech": bundle("speech")}) as client, opened(client) as first:
        first.send(json.dumps(FIRST))
        first.send(RAW)
        first.recv(timeout=60)
        with opened(client) as second:
            second.send(json.dumps(FIRST))
            (last,) = answers(second)
            assert last["code"] == "overloaded" and second.close_code == 1013
        first.send('{"end": true}')
        answers(first)
        assert first.close_code == 1000


def test_keys(bundle: Bundles, expected: list[LiveUpdate]) -> None:
    """As a bearer token, or in the first message: browsers send no headers of their own."""
    with serving({"speech": bundle("speech")}, api_keys=("secret",)) as client:
        for headers, body in (({}, {}), ({}, {"api_key": "wrong"}), ({"Authorization": "x"}, {})):
            with opened(client, **headers) as socket:
                socket.send(json.dumps(FIRST | body))
                (last,) = answers(socket)
                assert last["code"] == "unauthorized" and socket.close_code == 1008
        assert said(client, 3200, api_key="secret") == plain(expected)
        with opened(client, Authorization="Bearer secret") as socket:
            socket.send(json.dumps(FIRST))
            socket.send('{"end": true}')
            assert answers(socket) == []


def test_under_a_root_path(bundle: Bundles) -> None:
    with serving({"speech": bundle("speech")}, root_path="/talk") as client:
        for path in ("/talk/v1/listen", "/v1/listen"):
            with opened(client, path) as socket:
                socket.send(json.dumps(FIRST))
                socket.send('{"end": true}')
                assert answers(socket) == [] and socket.close_code == 1000


def test_a_stream_ends_with_its_server(bundle: Bundles) -> None:
    """It does not keep the server, and its client learns of the end."""
    with ExitStack() as server:
        client = server.enter_context(serving({"speech": bundle("speech")}))
        with opened(client) as socket:
            socket.send(json.dumps(FIRST))
            socket.send(RAW)
            socket.recv(timeout=60)
            server.close()
            answers(socket)
            assert socket.close_code in (1001, 1008, 1011, 1012)
