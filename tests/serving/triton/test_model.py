"""The model of a repository answers as the library does, whatever other requests there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.runtime import Bundle, Model, loading
from dragoman.runtime.backends import Backend
from dragoman.runtime.serving.engine.engine import DecodingEngine
from dragoman.runtime.serving.engine.request_queue import OverloadedError

from ...device_double import DoubleDevice
from ...provider_double import opened
from .backend_double import Logger, Request, Tensor, texts

Models = Callable[[str], Model]
Start = Callable[..., Any]
WORDS = ["a", "dragoman", "interpreters", "it", "encyclopaedia"]


def words_of(request: Request) -> list[str]:
    (answer,) = request.answers()
    assert answer.error is None, answer.error.text
    return [text.decode() for text in answer.tensors["text"]]


def error_of(request: Request) -> tuple[str, str]:
    (answer,) = request.answers()
    assert answer.error is not None
    return answer.error.code, answer.error.text


def test_an_instance_runs_on_its_own_gpu(
    start: Start, model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model("letters").generate(WORDS, max_new_tokens=5)
    device = DoubleDevice(index=1)

    def open_backend(bundle: Bundle, name: Any, threads: Any, gpu: Any, **more: Any) -> Backend:
        assert gpu == "cuda:1"
        return opened(bundle, device).backend

    monkeypatch.setattr(loading, "open_backend", open_backend)
    monkeypatch.setattr(loading, "check_known_answers", lambda *arguments: None)
    request = Request([texts(*WORDS)], {"max_new_tokens": 5})
    start(gpu=1).execute([request])
    assert words_of(request) == [result.text for result in expected]
    assert "execute" in device.log


def test_requests_get_the_outputs_of_the_library(start: Start, model: Models) -> None:
    requests = [
        Request([texts(*WORDS)]),
        Request([texts("dragoman")], {"num_beams": 3}),
        Request([texts("it")], {"max_new_tokens": 2, "priority": 7, "triton_x": True}),
        Request([texts("it"), texts('{"num_beams": 2, "alternatives": 1}', name="options")]),
        Request([texts()]),
        Request([texts("")]),
    ]
    start().execute(requests)
    letters = model("letters")
    expected = [
        letters.generate(WORDS),
        letters.generate(["dragoman"], num_beams=3),
        letters.generate(["it"], max_new_tokens=2),
        letters.generate(["it"], num_beams=2),
        [],
        letters.generate([""]),
    ]
    for request, results in zip(requests, expected, strict=True):
        (answer,) = request.answers()
        assert answer.error is None, answer.error.text
        found = answer.tensors
        assert [text.decode() for text in found["text"]] == [r.text for r in results]
        assert [r.decode() for r in found["finish_reason"]] == [r.finish_reason for r in results]
        for name in ("score", "log_probability"):
            assert found[name].dtype == np.float32
            values = [getattr(result, name) for result in results]
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)


def test_a_stream_has_an_answer_for_each_token_and_a_last_one(start: Start, model: Models) -> None:
    request = Request([texts("dragoman")], {"stream": True})
    start().execute([request])
    *parts, last = request.answers()
    tokens = list(model("letters").stream("dragoman"))
    (result,) = model("letters").generate(["dragoman"])
    assert [part.tensors["text"].tolist() for part in parts] == [
        [(token.text or "").encode()] for token in tokens
    ]
    assert not any("finish_reason" in part.tensors for part in parts)
    assert last.tensors["text"].tolist() == [(result.text or "").encode()]
    assert last.tensors["finish_reason"].tolist() == [result.finish_reason.encode()]


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        (lambda: Request([texts("a")], {"num_beans": 2}), "unknown: num_beans; options are "),
        (lambda: Request([texts("a")], {"num_beams": "2"}), "num_beams: expected "),
        (lambda: Request([texts("a")], {"max_new_tokens": 10**6}), "max_new_tokens: expected "),
        (lambda: Request([texts("a")], {"stream": 1}), "stream: expected true or false, found 1"),
        (lambda: Request([texts("a", "it")], {"stream": True}), "stream: expected one input, fou"),
        (lambda: Request([texts("a")], {"stream": True, "num_beams": 2}), "num_beams: expected 1"),
        (lambda: Request([texts("a"), texts("[]", name="options")]), "expected a JSON object, fo"),
        (lambda: Request([texts("a"), texts("{", "}", name="options")]), "options: expected one "),
        (lambda: Request([texts("a"), texts(b"\xff", name="options")]), "expected a JSON object:"),
        (lambda: Request([texts("a", "!")]), "1: "),
        (lambda: Request([texts(b"\xff")]), "text: expected UTF-8"),
        (lambda: Request([texts("a", name="audio")]), "inputs: expected text, found audio"),
        (lambda: Request([Tensor("text", np.zeros(1, np.int32))]), "text: expected BYTES"),
    ],
)
def test_an_invalid_request_does_not_affect_others(
    start: Start, model: Models, request_of: Callable[[], Request], message: str
) -> None:
    wrong, others = request_of(), [Request([texts(word)]) for word in WORDS]
    start().execute([*others[:2], wrong, *others[2:]])
    code, found = error_of(wrong)
    assert code == "invalid"
    assert found.startswith(message)
    expected = [result.text for result in model("letters").generate(WORDS)]
    assert [words_of(request)[0] for request in others] == expected


def test_a_defect_is_logged_and_not_reported(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    served = start()
    monkeypatch.setattr(DecodingEngine, "prepare", broken)
    request = Request([texts("a")])
    served.execute([request])
    assert error_of(request) == ("internal", "the server failed; see its log")
    assert "secret" in Logger.lines[0]


def test_too_many_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OverloadedError("expected fewer", 1.0)

    served = start()
    monkeypatch.setattr(DecodingEngine, "submit", full)
    request = Request([texts("a")])
    served.execute([request])
    assert error_of(request) == ("unavailable", "expected fewer")


def test_a_request_whose_time_is_up_fails(start: Start) -> None:
    request = Request([texts("a")], microseconds=1)
    start().execute([request])
    code, message = error_of(request)
    assert code == "unavailable"
    assert message.startswith("the request was not done within ")


def test_a_cancelled_request_is_evicted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded here, so only the cancellation can end the request."""
    calls: list[Any] = []
    served = start()
    monkeypatch.setattr(DecodingEngine, "submit", lambda _, *handles: calls.append(handles))
    request = Request([texts(*["a"] * 1000)])
    request.sender.cancelled = True
    served.execute([request])
    assert error_of(request) == ("gone", "the request was cancelled")
    served.finalize()
    (handles,) = calls
    assert len(handles) == 1000
    assert all(handle.future.cancelled() for handle in handles)


def test_finalize_waits_for_accepted_requests(start: Start, model: Models) -> None:
    served = start()
    requests = [Request([texts(word)]) for word in WORDS * 5]
    served.execute(requests)
    served.finalize()
    assert all(request.sender.final for request in requests)
    expected = [result.text for result in model("letters").generate(WORDS)] * 5
    assert [words_of(request)[0] for request in requests] == expected


def test_an_encoder_only_model_returns_embeddings(start: Start, model: Models) -> None:
    served = start("vectors")
    sentences = ["the man is eating", "paris"]
    good, wrong = Request([texts(*sentences)]), Request([texts("paris")], {"stream": True})
    unknown = Request([texts("paris")], {"num_beams": 2})
    text = Request([texts("paris")], {"truncate": "false"})  # would count as true
    served.execute([good, wrong, unknown, text])
    (answer,) = good.answers()
    expected = model("vectors").encode(sentences)
    np.testing.assert_allclose(answer.tensors["embedding"], expected, rtol=1e-4, atol=1e-5)
    assert "found an encoder-only model" in error_of(wrong)[1]
    assert error_of(unknown)[1] == "unknown parameters: num_beams"
    assert error_of(text)[1] == "truncate: expected true or false, found 'false'"


def test_a_model_without_streaming(start: Start, model: Models) -> None:
    served = start(streaming=False)
    good, wrong = Request([texts("it")]), Request([texts("it")], {"stream": True})
    served.execute([good, wrong])
    assert words_of(good) == [result.text for result in model("letters").generate(["it"])]
    assert error_of(wrong) == ("invalid", "stream: this model was deployed with --no-streaming")


@pytest.mark.parametrize("value", ["0", "two", "-1", ""])
def test_an_invalid_configuration(start: Start, value: str) -> None:
    with pytest.raises(DragomanError, match=f"workers: expected an integer .*, found '{value}'"):
        start(parameters={"workers": value})


def test_speech_models_take_audio_files(start: Start, model: Models, tmp_path: Any) -> None:
    import soundfile

    path = tmp_path / "clip.wav"
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, 12_000)
    soundfile.write(path, noise, 16_000)
    request = Request([texts(path.read_bytes(), name="audio")], {"language": "en"})
    wrong = Request([texts(b"no audio", name="audio")])
    cut = Request([texts(path.read_bytes()[:9044], name="audio")])
    start("speech").execute([request, wrong, cut])
    assert len(words_of(cut)) == 1
    assert Logger.lines.pop() == (
        "audio: the file ends early: expected 24000 bytes of samples, found 9000"
    )
    (expected,) = model("speech").generate([path], language="en")
    assert words_of(request) == [expected.text]
    assert "audio: expected an audio file" in error_of(wrong)[1]


def test_no_http_library_is_needed(start: Start) -> None:
    import subprocess
    import sys

    code = (
        "import sys, json, types\n"
        "sys.modules['triton_python_backend_utils'] = types.ModuleType('x')\n"
        "import dragoman.runtime.serving.triton.model; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"starlette", "uvicorn", "prometheus_client", "torch", "onnx", "click"}
