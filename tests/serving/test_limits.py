"""Limits of requests, slow clients, and failures of the backend."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from starlette.types import Message, Scope
from tritonclient.http import InferenceServerClient, InferInput

from dragoman.runtime import Model
from dragoman.runtime.backends.interface import BackendError, DeviceLostError
from dragoman.runtime.decoding.running_batch import RunningBatch
from dragoman.runtime.encoding.front_end import EncoderFrontEnd
from dragoman.runtime.serving.apis import http as http_layer
from dragoman.runtime.serving.apis.http import STREAM_STATUS, Events

from .conftest import serving

Bundles = Callable[[str], Path]
GENERATE = "/v1/generate"


@pytest.fixture(scope="module")
def client(bundle: Bundles) -> Iterator[httpx.Client]:
    options = {"batch_size": 4, "max_new_tokens": 5}
    with serving({"letters": bundle("letters")}, engine=options) as client:
        yield client


LARGE = "9" * 401
REFUSED: list[tuple[str, str]] = [
    (f'"do_sample": true, "temperature": {LARGE}', "temperature: expected a number in [0, inf)"),
    (f'"num_beams": 2, "length_penalty": {LARGE}', "length_penalty: expected a number"),
    ('"num_beams": 5', "num_beams: expected at most 4, the rows of a batch, found 5"),
    (
        '"do_sample": true, "num_return_sequences": 1025',
        "expected at most 1024 outputs in all, found 1025",
    ),
    ('"max_new_tokens": 6', "max_new_tokens: expected at most 5, found 6"),
    (f'"max_new_tokens": {LARGE}', "max_new_tokens: expected at most 5, found 999"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_options_beyond_the_limits(client: httpx.Client, options: str, words: str) -> None:
    answer = client.post(GENERATE, content=f'{{"source": "a", {options}}}')
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert words in answer.json()["error"] and len(answer.json()["error"]) < 200


def test_an_infinite_limit_is_no_limit(client: httpx.Client) -> None:
    body = f'{{"source": "interpreters", "max_new_tokens_per_source_token": {LARGE}}}'
    found = client.post(GENERATE, content=body)
    assert found.json() == client.post(GENERATE, json={"source": "interpreters"}).json()


def test_outputs_of_all_sources_together_have_a_limit(client: httpx.Client) -> None:
    body = {"sources": ["a"] * 600, "do_sample": True, "num_return_sequences": 2}
    answer = client.post(GENERATE, json=body)
    assert answer.status_code == 400
    assert "expected at most 1024 outputs in all, found 1200" in answer.json()["error"]


def test_a_target_for_attention_is_decoded_like_a_request(client: httpx.Client) -> None:
    """The server's limits hold for it."""
    answer = client.post("/v1/attention", json={"source": "interpreters"}).json()
    generated = client.post(GENERATE, json={"source": "interpreters"}).json()["results"][0]
    assert 0 < len(generated["tokens"]) <= 5
    ended = generated["finish_reason"] == "end"
    assert len(answer["rows"]) == len(generated["tokens"]) + ended


def test_attention_has_a_deadline(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = client.post("/v1/attention", json={"source": "a", "target": "D", "timeout": 1e-9})
    assert (answer.status_code, answer.json()["code"]) == (504, "timeout")


def test_audio_has_a_limit(bundle: Bundles, tmp_path: Path) -> None:
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, np.zeros(3 * 16000), 16000)
    with serving({"speech": bundle("speech")}, max_audio=2.0) as client:
        form = {"files": {"file": ("clip.wav", clip.read_bytes())}, "data": {"model": "speech"}}
        answer = client.post("/v1/audio/transcriptions", **form)  # type: ignore[arg-type]
        assert answer.status_code == 400
        assert "expected at most 2 s of audio, found more" in answer.json()["error"]["message"]
        short = tmp_path / "short.wav"
        soundfile.write(short, np.zeros(24000), 16000)
        audio = base64.b64encode(short.read_bytes()).decode()
        assert client.post(GENERATE, json={"audio": audio}).status_code == 200
        files = InferInput("audio", [2], "BYTES")
        files.set_data_from_numpy(np.array([short.read_bytes()] * 2, object), binary_data=True)
        body, length = InferenceServerClient.generate_request_body([files])
        headers = {"Inference-Header-Content-Length": str(length)}
        answer = client.post("/v2/models/speech/infer", content=body, headers=headers)
        assert answer.status_code == 400
        assert "expected at most 0.5 s of audio, found more" in answer.json()["error"]


def test_a_slow_body_times_out(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_layer, "BODY_SECONDS", 0.05)
    with serving({"letters": bundle("letters")}) as client:
        address = (client.base_url.host, client.base_url.port or 0)
        with socket.create_connection(address, timeout=60) as connection:
            head = "POST /v1/generate HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n"
            connection.sendall(f'{head}{{"source": '.encode())
            with connection.makefile("rb") as answers:
                answer = answers.read()  # until the server closes the connection
        assert client.post(GENERATE, json={"source": "a"}).status_code == 200
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_slow"' in answer


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_layer, "READING_SECONDS", 0.05)
    left = []

    async def events() -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "data: 1\n\n"
        finally:
            left.append(True)

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Future()

    scope: Scope = {"type": "http"}

    async def main() -> None:
        await Events(events())(scope, receive, send)

    asyncio.run(main())
    assert scope[STREAM_STATUS] == 499
    assert left


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_logged_with_the_id_of_its_request(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    step, steps = RunningBatch.step, []

    def fails_at_second(loop: Any) -> Any:
        steps.append(loop)
        if len(steps) > 1:
            raise BackendError("no memory")
        return step(loop)

    with serving({"letters": bundle("letters")}) as client:
        monkeypatch.setattr(RunningBatch, "step", fails_at_second)
        body = {"source": "interpreters", "stream": stream}
        client.post(GENERATE, json=body, headers={"X-Request-Id": "mine"})
    (failed,) = [record for record in caplog.records if record.getMessage() == "failed"]
    assert (vars(failed)["request_id"], vars(failed)["route"]) == ("mine", GENERATE)
    assert failed.exc_info


@pytest.mark.parametrize(
    "error", [BackendError("no memory"), DeviceLostError("the device is lost")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_backend_are_errors_of_the_server(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch, error: Exception, stream: bool
) -> None:
    def fails(loop: Any) -> None:
        raise error

    with serving({"letters": bundle("letters")}) as client:
        monkeypatch.setattr(RunningBatch, "step", fails)
        body = {"source": "a", "stream": stream}
        answers = [client.post(GENERATE, json=body) for _ in range(2)]
        alive = client.get("/health/live").status_code
    is_lost = isinstance(error, DeviceLostError)
    for answer in answers:
        assert answer.status_code == (503 if is_lost else 500)
        assert answer.json() == {"error": str(error), "code": "backend_error"}
    assert alive == (503 if is_lost else 200)


def test_an_encoder_whose_device_is_lost_is_not_alive(
    bundle: Bundles, model: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise DeviceLostError("the device is lost")

    with serving({"vectors": bundle("vectors")}) as client:
        body = {"texts": ["the man eats food"]}
        assert client.post("/v1/encode", json=body).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(EncoderFrontEnd, "embeddings", fails)
            answer = client.post("/v1/encode", json=body)
        assert answer.status_code == 503
        assert client.post("/v1/encode", json=body).json()["error"] == "the device is lost"
        assert client.get("/health/live").status_code == 503
