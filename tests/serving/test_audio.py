"""Audio of requests: what is open at once is bounded, and what is missing is said."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from tritonclient.http import InferenceServerClient, InferInput

from dragoman.runtime import Model
from dragoman.runtime.audio import AudioError, read_blocks
from dragoman.runtime.serving.audio_reading import READING, AudioReader, OpenAudio
from dragoman.runtime.serving.engine.request_queue import OverloadedError
from dragoman.runtime.speech import recording
from dragoman.settings.speech import AudioFeatures

from ..speech_models import RATE, noise
from .conftest import serving
from .test_requests import Gate, gate

__all__ = ["gate"]

Bundles = Callable[[str], Path]
CASES = Path(__file__).parents[1] / "runtime" / "audio" / "cases"
TRANSCRIPTIONS = "/v1/audio/transcriptions"


def wav(samples: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


CUT = wav(noise(2.5, 1))[:50_044]
"""25,000 of 40,000 samples."""
WARNING = "audio: the file ends early: expected 80000 bytes of samples, found 50000"


@pytest.fixture(scope="module")
def client(bundle: Bundles) -> Iterator[httpx.Client]:
    with serving({"speech": bundle("speech")}) as client:
        yield client


def transcribed(client: httpx.Client, content: bytes, **form: str) -> httpx.Response:
    return client.post(TRANSCRIPTIONS, files={"file": ("x.raw", content)}, data=form)


def test_seconds_of_all_requests_are_bounded() -> None:
    reader, settings = AudioReader(longest=4, most=5), AudioFeatures(chunk_seconds=1)
    first, second, third = OpenAudio(), OpenAudio(), OpenAudio()
    reader.read(first, [wav(noise(2, 1)), wav(noise(1, 1))], settings)
    assert first.seconds == 3
    with pytest.raises(OverloadedError, match="expected at most 5 s of all requests") as refused:
        reader.read(second, [wav(noise(2.5, 1))], settings)
    assert refused.value.status == 429 and int(refused.value.headers["Retry-After"]) >= 1
    reader.close(second)
    (read,) = reader.read(third, [wav(noise(1.5, 1))], settings)
    assert read.seconds == 1.5
    reader.close(first)
    reader.close(third)
    with pytest.raises(AudioError, match="the request was closed"):
        reader.read(third, [wav(noise(1, 1))], settings)
    fourth = OpenAudio()
    with pytest.raises(AudioError, match="expected at most 1 s of audio, found more"):
        reader.read(fourth, [wav(noise(3, 1)), wav(noise(1.5, 1))], settings)


def test_the_oldest_request_is_accepted() -> None:
    """Of several that are read in turn, one is finished."""
    reader, settings = AudioReader(longest=10, most=1), AudioFeatures(chunk_seconds=1)
    first, second = OpenAudio(), OpenAudio()
    reader.read(first, [wav(noise(0.5, 1))], settings)
    reader.read(second, [wav(noise(0.5, 1))], settings)
    with pytest.raises(OverloadedError):
        reader.read(second, [wav(noise(0.5, 1))], settings)
    reader.read(first, [wav(noise(3, 1))], settings)
    assert first.seconds == 3.5


def test_audio_is_open_until_it_is_decoded(bundle: Bundles, gate: Gate) -> None:
    with (
        serving({"speech": bundle("speech")}, max_open_audio=1.0) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        clip = wav(noise(0.7, 1))
        running = pool.submit(transcribed, client, clip)
        assert gate.reached.acquire(timeout=60)
        refused = transcribed(client, clip)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
        gate.open()
        assert running.result().status_code == 200
        assert transcribed(client, clip).status_code == 200


def test_reading_stops_when_the_client_has_left(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def endless(*arguments: Any, **options: Any) -> Iterator[Any]:
        try:
            while True:
                begun.set()
                yield np.zeros(16, np.float32)
        finally:
            stopped.set()

    with serving({"speech": bundle("speech")}) as client:
        monkeypatch.setattr(recording, "read_blocks", endless)
        body = json.dumps({"audio": "AAAA"})
        with socket.create_connection((client.base_url.host, client.base_url.port)) as leaving:
            head = f"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            leaving.sendall((head + body).encode())
            assert begun.wait(60)
        assert stopped.wait(60)


def test_a_file_that_ends_early_has_a_warning(
    client: httpx.Client, model: Callable[[str], Model]
) -> None:
    (expected,) = model("speech").generate([CUT], task="transcribe", timestamps=False)
    assert expected.warnings == (WARNING,)
    for form in ("json", "verbose_json"):
        answer = transcribed(client, CUT, response_format=form)
        assert answer.json()["warnings"] == [WARNING]
    assert transcribed(client, CUT).json()["text"] == (expected.text or "").strip()
    for form in ("text", "srt", "vtt", "json"):
        headers = transcribed(client, CUT, response_format=form).headers
        assert headers["Warning"] == f'199 dragoman "{WARNING}"'
    whole = transcribed(client, wav(noise(2.5, 1)))
    assert "warnings" not in whole.json() and "Warning" not in whole.headers
    native = {"audio": base64.b64encode(CUT).decode()}
    (result,) = client.post("/v1/generate", json=native).json()["results"]
    assert result["warnings"] == [WARNING]
    tensor = InferInput("audio", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([CUT], object))
    body, length = InferenceServerClient.generate_request_body([tensor])
    path, name = "/v2/models/speech/infer", "Inference-Header-Content-Length"
    answer = client.post(path, content=body, headers={name: str(length)})
    described = json.loads(answer.content[: int(answer.headers.get(name, len(answer.content)))])
    assert described["parameters"] == {"warnings": f"0: {WARNING}"}


def test_a_clip_does_not_wait_for_long_recordings(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them are being read than are read at the same time."""
    begun, clip = threading.Semaphore(0), wav(noise(0.7, 1))

    def endless(audio: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        if audio == clip:
            yield from read_blocks(audio, *arguments, **options)
            return
        begun.release()
        while True:
            yield np.zeros(16, np.float32)

    with serving({"speech": bundle("speech")}) as client, contextlib.ExitStack() as stack:
        monkeypatch.setattr(recording, "read_blocks", endless)
        body = json.dumps({"audio": "AAAA"})
        head = f"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        address = client.base_url.host, client.base_url.port
        for _ in range(READING + 2):
            connection = stack.enter_context(socket.create_connection(address))
            connection.sendall((head + body).encode())
        for _ in range(READING):
            assert begun.acquire(timeout=60)
        assert transcribed(client, clip).status_code == 200


def test_strict_audio_refuses_it(client: httpx.Client) -> None:
    answer = transcribed(client, CUT, strict_audio="true")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, WARNING)
    last = transcribed(client, CUT, stream="true").text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["warnings"] == [WARNING]
    native = {"audio": base64.b64encode(CUT).decode(), "strict_audio": True}
    (result,) = client.post("/v1/generate", json=native).json()["results"]
    assert (result["finish_reason"], result["error"]) == ("rejected", WARNING)


@pytest.mark.parametrize("name", ["strict_audio", "stream"])
def test_truth_values_of_forms(client: httpx.Client, name: str) -> None:
    for value in ("perhaps", "x" * 5000):
        message = transcribed(client, CUT, **{name: value}).json()["error"]["message"]
        assert message.startswith(f"{name}: expected true or false, found '{value[:7]}")
        assert len(message) < 120
    for value in ("False", "0", ""):
        assert transcribed(client, CUT, **{name: value}).status_code == 200
    for value in ("true", "True", "TRUE", "1"):
        answer = transcribed(client, CUT, **{name: value})
        if name == "stream":
            assert answer.headers["content-type"].startswith("text/event-stream")
        else:
            assert answer.status_code == 400


def test_cues_take_at_least_a_millisecond(client: httpx.Client) -> None:
    """A recording of one sample is shorter."""
    for form, empty in (("srt", ""), ("vtt", "WEBVTT\n\n")):
        assert transcribed(client, wav(noise(1 / RATE, 1)), response_format=form).text == empty


def test_errors_say_which_formats_are_read(client: httpx.Client) -> None:
    answer = transcribed(client, b"no audio at all")
    assert answer.status_code == 400
    assert "(WAV, FLAC, MP3, Ogg (Opus, Vorbis), M4A, MP4, WebM, " in answer.text


@pytest.mark.parametrize("name", ["bad_8.wav", "bad_loop_0.35s.wav"])
@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_no_cue_is_after_the_recording(client: httpx.Client, name: str, form: str) -> None:
    content = (CASES / name).read_bytes()
    seconds = (len(content) - 44) / 2 / RATE
    text = transcribed(client, content, response_format=form).text
    times = [
        3600 * int(hours) + 60 * int(minutes) + float(rest.replace(",", "."))
        for hours, minutes, rest in re.findall(r"(\d\d):(\d\d):(\d\d[.,]\d{3})", text)
    ]
    assert times and len(times) % 2 == 0
    assert max(times) <= round(seconds, 3)
    assert all(begin < end for begin, end in zip(times[::2], times[1::2], strict=True))


def test_a_language_may_be_auto(client: httpx.Client) -> None:
    content = wav(noise(0.7, 1))
    detected = transcribed(client, content).json()
    assert transcribed(client, content, language="auto").json() == detected
