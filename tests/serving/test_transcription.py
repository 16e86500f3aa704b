"""Transcriptions of a server as published: its defaults, and segments that arrive one by one."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from dragoman.runtime import Model, Result
from dragoman.runtime.audio.reading import read_audio
from dragoman.runtime.audio.voice_activity import VoiceFilter

from ..speech_models import RATE, noise
from .conftest import serving
from .test_native import plain

Bundles = Callable[[str], Path]
Models = Callable[[str], Model]

PATH = "/v1/audio/transcriptions"
AUDIO = noise(3.3, 12)
LOUD: dict[str, Any] = {"vad": False, "language": "de"}


def wav(samples: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def client(bundle: Bundles, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    engine = {"workers": request.param}
    with serving({"speech": bundle("speech")}, greedy=False, engine=engine) as client:
        yield client


def transcript(model: Model, **options: Any) -> Result:
    *_, last = model.transcribe([AUDIO], **{"task": "transcribe", **LOUD, **options})
    assert last.result is not None
    return last.result


def test_what_a_request_leaves_open(client: httpx.Client, model: Models) -> None:
    expected = transcript(model("speech"))
    body = {"audio": base64.b64encode(wav(AUDIO)).decode(), "task": "transcribe", **LOUD}
    (found,) = client.post("/v1/generate", json=body).json()["results"]
    assert found == plain(expected)
    form = {"language": "de", "vad": "false", "response_format": "verbose_json"}
    answer = client.post(PATH, files={"file": wav(AUDIO)}, data=form).json()
    assert [s["tokens"] for s in answer["segments"]] == [
        list(s.tokens) for s in expected.segments or ()
    ]
    assert [s["temperature"] for s in answer["segments"]] == [
        s.quality.temperature for s in expected.segments or () if s.quality
    ]
    once = {"num_beams": 1, "fallback": False, "condition_on_previous_text": False}
    (found,) = client.post("/v1/generate", json=body | once).json()["results"]
    (greedy,) = model("speech").generate(
        [AUDIO], timestamps=True, task="transcribe", language="de", num_beams=1
    )
    assert found == plain(greedy)


def test_noise_is_left_out(client: httpx.Client) -> None:
    body = {"audio": base64.b64encode(wav(AUDIO)).decode()}
    for more in ({}, {"cut_at_silence": True}):
        (found,) = client.post("/v1/generate", json=body | more).json()["results"]
        assert (found["finish_reason"], found["voice"]) == ("empty", [])
    answer = client.post(PATH, files={"file": wav(AUDIO)}, data={"stream": "true"})
    assert events(answer) == [{"type": "transcript.text.done", "text": ""}]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-1]]


def test_segments_arrive_one_by_one(client: httpx.Client, model: Models) -> None:
    expected = transcript(model("speech"), hotwords="w5")
    form = {"language": "de", "vad": "false", "hotwords": "w5", "stream": "true"}
    *deltas, done = events(client.post(PATH, files={"file": wav(AUDIO)}, data=form))
    assert [event["type"] for event in deltas] == ["transcript.text.delta"] * len(deltas)
    texts = [s.text for s in expected.segments or () if s.text]
    assert len(texts) > 1
    assert [event["delta"] for event in deltas] == [texts[0].lstrip(), *texts[1:]]
    assert done == {"type": "transcript.text.done", "text": (expected.text or "").strip()}


def test_the_client_of_openai_reads_a_stream(client: httpx.Client, model: Models) -> None:
    expected = transcript(model("speech"))
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any") as openai_client:
        *deltas, done = openai_client.audio.transcriptions.create(
            file=("a.wav", wav(AUDIO)),
            model="speech",
            language="de",
            stream=True,
            extra_body={"vad": "false"},
        )
    assert "".join(event.delta for event in deltas) == done.text  # type: ignore[union-attr]
    assert done.text == (expected.text or "").strip()  # type: ignore[union-attr]


def test_a_recording_without_times_is_one_segment(client: httpx.Client, model: Models) -> None:
    short = AUDIO[: RATE // 2]
    (expected,) = model("speech").generate([short], task="transcribe", language="de")
    with serving({"speech": model("speech").bundle.directory}) as greedy:
        form = {"language": "de", "stream": "true"}
        *deltas, done = events(greedy.post(PATH, files={"file": wav(short)}, data=form))
    assert [event["delta"] for event in deltas] == [(expected.text or "").strip()] == [done["text"]]


@pytest.mark.parametrize(
    ("form", "content", "problem"),
    [
        ({"response_format": "srt"}, wav(AUDIO), "stream: expected response_format json or text"),
        ({"language": "xx"}, wav(AUDIO), "language: expected one of"),
        ({}, b"no audio", "expected an audio file, intact"),
    ],
)
def test_errors_before_a_stream_are_ordinary_answers(
    client: httpx.Client, form: dict[str, str], content: bytes, problem: str
) -> None:
    answer = client.post(PATH, files={"file": content}, data={"stream": "true", **form})
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


def test_pauses_are_those_of_the_library(client: httpx.Client, model: Models) -> None:
    """Speech ends at shorter pauses if a recording is cut."""
    clip = read_audio(Path(__file__).parents[1] / "real/clips/librivox-0930.flac")
    audio = np.concatenate([clip, np.zeros(RATE, np.float32), clip])
    body = {"audio": base64.b64encode(wav(audio)).decode(), "vad": True}
    found = []
    for cut in (False, True):
        *_, last = model("speech").transcribe([audio], vad=True, cut_at_silence=cut)
        answer = client.post("/v1/generate", json=body | {"cut_at_silence": cut}).json()
        assert last.result is not None and last.result.voice is not None
        assert answer["results"][0]["voice"] == plain(last.result)["voice"]
        found.append(len(last.result.voice))
    assert found == [1, 2]


def test_parts_of_a_recording(
    client: httpx.Client, model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end in any order, on any worker."""

    def kept(self: VoiceFilter, blocks: Any) -> Iterator[Any]:
        signal = np.concatenate(list(blocks))
        self.spans = [(0, len(signal))]
        self.pauses = [(round(at * RATE), RATE // 3) for at in (0.7, 1.2, 1.9, 2.6)]
        yield signal

    monkeypatch.setattr(VoiceFilter, "kept", kept)
    options: dict[str, Any] = {"cut_at_silence": True, "task": "transcribe", "num_beams": 2}
    body = {"audio": base64.b64encode(wav(AUDIO)).decode(), **options}
    *_, last = model("speech").transcribe([AUDIO], **options)
    assert last.result is not None and len(last.result.segments or ()) >= 5
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(lambda _: client.post("/v1/generate", json=body).json(), range(3))
    assert [answer["results"] for answer in answers] == [[plain(last.result)]] * 3
