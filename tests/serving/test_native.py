"""Dragoman's own API answers what the library returns."""

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
import pytest
import soundfile

from dragoman.runtime import GenerationOptions, Model
from dragoman.runtime.decoding.results import result_data

from .conftest import serving

Models = Callable[[str], Model]

WORDS = ["dragoman", "a", "transformer", "of", "interpreters", "zz", "encoder"]


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def client(request: Any, bundle: Callable[[str], Path]) -> Iterator[httpx.Client]:
    names = ("letters", "quantized", "student", "vectors", "speech")
    engine = {"workers": request.param, "batch_size": 5}
    with serving({name: bundle(name) for name in names}, engine=engine) as client:
        yield client


def ask(client: httpx.Client, path: str = "/v1/generate", **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def plain(result: Any) -> Any:
    return json.loads(json.dumps(result_data(result)))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5},
    {"do_sample": True, "seed": 5, "num_return_sequences": 3, "temperature": 0.7},
    {"max_new_tokens": 4, "alternatives": 2},
    {"prefix": "D R", "min_new_tokens": 5},
    {"num_beams": 2, "must_contain": ["AE"], "must_not_contain": ["T"]},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "end_token_id": ["AE", 30]},
    {"num_beams": 3, "min_new_tokens": 4, "renormalize_logits": True, "truncate": True},
    {"do_sample": True, "temperature": 0, "top_p": 0.5, "prefix": []},
]


@pytest.mark.parametrize("name", ["letters", "student"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "greedy")
def test_options_have_the_same_effect_as_in_the_library(
    client: httpx.Client, model: Models, name: str, options: dict[str, Any]
) -> None:
    found = ask(client, model=name, sources=WORDS, **options)
    expected = model(name).generate(WORDS, GenerationOptions(**options))
    assert found == {"model": name, "results": [plain(result) for result in expected]}


def test_a_shortlist_counts_in_the_server(client: httpx.Client, model: Models) -> None:
    found = ask(client, model="student", sources=WORDS)["results"]
    whole = ask(client, model="student", sources=WORDS, shortlist=False)["results"]
    assert sum(a != b for a, b in zip(found, whole, strict=True)) >= 3
    expected = model("student").generate(WORDS, shortlist=False)
    assert whole == [plain(result) for result in expected]


def test_one_source_token_ids_and_unreadable_sources(client: httpx.Client, model: Models) -> None:
    ids = model("letters").tokenize("dragoman")
    expected = plain(model("letters").generate(["dragoman"])[0])
    assert ask(client, model="letters", source="dragoman")["results"] == [expected]
    assert ask(client, model="letters", source=ids)["results"] == [expected]
    sources: list[Any] = ["dragoman", "", [1, 99], "x" * 100]
    found = ask(client, model="letters", sources=sources)["results"]
    assert found == [plain(result) for result in model("letters").generate(sources)]
    assert [r["finish_reason"] for r in found] == ["length", "empty", "rejected", "rejected"]


def events(text: str) -> list[tuple[str, Any]]:
    """The name and data of each event; an event without a name is a "message"."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((lines.get("event", "message"), json.loads(lines["data"])))
    return found


@pytest.mark.parametrize("model_name", ["letters", "student"])
def test_a_stream_has_tokens_and_then_the_whole_result(
    client: httpx.Client, model: Models, model_name: str
) -> None:
    options = {"prefix": "D R", "do_sample": True, "seed": 3}
    body = {"model": model_name, "source": "dragoman", "stream": True, **options}
    with client.stream("POST", "/v1/generate", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *tokens, (name, last) = events("".join(answer.iter_text()))
    given = GenerationOptions(**options)  # type: ignore[arg-type]
    streamed = list(model(model_name).stream("dragoman", given))
    assert tokens == [
        (
            "message",
            {
                "id": t.id,
                "text": t.text,
                "log_probability": t.log_probability,
                "is_end": t.is_end,
            },
        )
        for t in streamed
    ]
    assert tokens[-1][1]["is_end"] == (last["finish_reason"] == "end")
    (whole,) = model(model_name).generate(["dragoman"], given)
    assert (name, last) == ("end", plain(whole))
    assert "".join(t["text"] for _, t in tokens) == whole.text


def test_errors_before_a_stream_are_ordinary_answers(client: httpx.Client) -> None:
    body = {"model": "letters", "source": "a", "stream": True, "num_beams": 2}
    answer = client.post("/v1/generate", json=body)
    assert answer.status_code == 400
    assert "num_beams: expected 1 to stream" in answer.json()["error"]
    body = {"model": "letters", "source": "", "stream": True}
    ((name, result),) = events(client.post("/v1/generate", json=body).text)
    assert (name, result["finish_reason"]) == ("end", "empty")
    sound = base64.b64encode(wav(np.full(8000, 0.1, np.float32))).decode()
    for name, value in (("fallback", True), ("cut_at_silence", True), ("prefix", "w5")):
        body = {"model": "speech", "audio": sound, "stream": True, name: value}
        answer = client.post("/v1/generate", json=body)
        assert answer.status_code == 400
        assert f"{name}: expected false to stream" in answer.json()["error"]


@pytest.mark.parametrize("name", ["letters", "quantized", "student"])
def test_outputs_do_not_depend_on_load(client: httpx.Client, model: Models, name: str) -> None:
    """There are concurrent requests of every strategy, more than rows."""
    cases = [(word, options) for word in WORDS for options in OPTIONS]
    order = np.random.default_rng(0).permutation(len(cases))
    with ThreadPoolExecutor(12) as pool:
        answers = pool.map(
            lambda i: ask(client, model=name, source=cases[i][0], **cases[i][1]), order
        )
        found = dict(zip(order.tolist(), answers, strict=True))
    for index, (word, options) in enumerate(cases):
        (expected,) = model(name).generate([word], GenerationOptions(**options))
        assert found[index]["results"] == [plain(expected)]


def wav(samples: np.ndarray[Any, Any], rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_special_tokens_in_texts_are_plain_text_by_default(
    client: httpx.Client, model: Models
) -> None:
    letters, vectors = model("letters"), model("vectors")
    (refused,) = ask(client, model="letters", source="ab</s>c")["results"]
    assert refused["finish_reason"] == "rejected" and "unknown" in refused["error"]
    found = ask(client, model="letters", source="ab</s>c", split_special_tokens=False)
    assert found["results"] == [plain(r) for r in letters.generate(["ab</s>c"])]
    text = "a [SEP] b"
    for body, split in (({}, True), ({"split_special_tokens": False}, False)):
        answer = ask(client, "/v1/encode", model="vectors", texts=[text], **body)
        expected = vectors.encode([text], split_special_tokens=split)[0]
        np.testing.assert_allclose(answer["results"][0]["vector"], expected, atol=1e-5)
    assert not np.allclose(
        vectors.encode([text]), vectors.encode([text], split_special_tokens=True), atol=1e-3
    )


@pytest.mark.parametrize("seconds", [0.4, 1.0, 3.7])
def test_speech_of_any_length(client: httpx.Client, model: Models, seconds: float) -> None:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, int(16_000 * seconds)).astype(np.float32)
    audio = base64.b64encode(wav(samples)).decode()
    found = ask(client, model="speech", audio=audio, language="de")
    expected = model("speech").generate([samples], language="de")
    assert found["results"] == [plain(result) for result in expected]


def test_embeddings(client: httpx.Client, model: Models) -> None:
    texts = ["the man eats food", "paris is in france.", "a", "x" * 90]
    found = ask(client, "/v1/encode", model="vectors", texts=texts)["results"]
    vectors = model("vectors").encode(texts[:3])
    np.testing.assert_array_equal([f["vector"] for f in found[:3]], vectors)
    assert "expected at most 24" in found[3]["error"]


def test_attention(client: httpx.Client, model: Models) -> None:
    found = ask(client, "/v1/attention", model="letters", source="dragoman", target="D R")
    expected = model("letters").attention("dragoman", "D R")
    assert (tuple(found["columns"]), tuple(found["rows"])) == (expected.source, expected.target)
    np.testing.assert_allclose(found["weights"], expected.aligning, atol=1e-4)


MISTAKES: list[tuple[dict[str, Any], int, str]] = [
    (
        {"source": "a"},
        404,
        "model: expected one of letters, quantized, speech, student, vectors, found none",
    ),
    ({"model": "x", "source": "a"}, 404, "found 'x'"),
    ({"model": "letters"}, 400, "expected one of source, sources and audio, found none"),
    ({"model": "letters", "source": "a", "sources": []}, 400, "found source and sources"),
    ({"model": "letters", "source": {}}, 400, "source: expected a string or a list, found an"),
    ({"model": "letters", "sources": [1]}, 400, "expected a string or a list of token ids"),
    ({"model": "letters", "source": "a", "beams": 2}, 400, "unknown: beams; options are"),
    ({"model": "letters", "source": "a", "num_beans": 2}, 400, "; the nearest is num_beams"),
    ({"model": "letters", "source": "a", "strem": 2}, 400, "; the nearest is stream"),
    ({"model": "letters", "sorce": "a"}, 400, "of source, sources and audio, found sorce"),
    ({"model": "letters", "source": "a", "num_beams": 0}, 400, "num_beams: expected"),
    ({"model": "letters", "source": "a", "max_new_tokens": 25}, 400, "max_new_tokens: expected at"),
    ({"model": "letters", "source": "a", "max_batch_size": 2}, 400, "unknown: max_batch_size"),
    ({"model": "letters", "source": "a", "timeout": -1}, 400, "seconds above 0, found -1"),
    ({"model": "letters", "source": "a", "timeout": 0, "stream": True}, 400, "above 0, found 0"),
    ({"model": "letters", "source": "a", "stream": 1}, 400, "stream: expected true or false"),
    ({"model": "letters", "source": "a", "target_language": "de"}, 400, "has no languages"),
    ({"model": "letters", "sources": ["a", "b"], "stream": True}, 400, "expected one to stream"),
    ({"model": "letters", "audio": "AAAA"}, 400, "letters is not a speech model"),
    ({"model": "speech", "source": "a"}, 400, "expected audio"),
    ({"model": "speech", "audio": "!"}, 400, "audio: expected base64"),
    ({"model": "speech", "audio": "AAAA"}, 400, "expected an audio file, intact"),
    ({"model": "vectors", "source": "a"}, 400, "computes embeddings"),
]


@pytest.mark.parametrize(("body", "status", "words"), MISTAKES, ids=[m[2][:40] for m in MISTAKES])
def test_invalid_requests(
    client: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    answer = client.post("/v1/generate", json=body)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "code"})
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected a JSON object"),
        (b"[]", "expected a JSON object, found list"),
        (b'{"a": NaN}', "expected finite numbers"),
        (b'{"a": 1, "a": 2}', "each name once"),
        (b"\xff", "expected a JSON object"),
        (b"[" * 100_000, "deep"),
    ],
)
def test_bodies_that_are_not_json(client: httpx.Client, content: bytes, words: str) -> None:
    answer = client.post("/v1/generate", content=content)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
