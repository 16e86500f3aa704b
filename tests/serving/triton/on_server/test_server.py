"""A real Triton answers as the library does."""

from __future__ import annotations

import importlib
import json
import queue
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import count
from typing import Any

import numpy as np
import pytest

from dragoman.runtime import Model

pytestmark = pytest.mark.triton

Models = Callable[[str], Model]
WORDS = ["a", "dragoman", "interpreters", "it", "encyclopaedia", "translation", "xyz", "words"]


def tensor(client: Any, name: str, values: list[str]) -> Any:
    made = client.InferInput(name, [len(values)], "BYTES")
    made.set_data_from_numpy(np.array([value.encode() for value in values], object))
    return made


def texts_of(response: Any) -> list[str]:
    return [text.decode() for text in response.as_numpy("text")]


def post(address: str, action: str, body: dict[str, Any]) -> bytes:
    connection = HTTPConnection(address, timeout=60)
    connection.request("POST", f"/v2/models/letters/{action}", json.dumps(body))
    answer = connection.getresponse().read()
    connection.close()
    return answer


class Stream:
    """Requests on one gRPC stream, and their responses, which come in any order."""

    def __init__(self, address: str) -> None:
        self._grpc = importlib.import_module("tritonclient.grpc")
        self._client = self._grpc.InferenceServerClient(address)
        self._arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._numbers = count()
        self._client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def ask(self, model: str, texts: list[str], **parameters: Any) -> str:
        number = str(next(self._numbers))
        options = parameters.pop("options", None)
        inputs = [tensor(self._grpc, "text", texts)]
        if options is not None:
            inputs.append(tensor(self._grpc, "options", [json.dumps(options)]))
        self._client.async_stream_infer(
            model, inputs, request_id=number, parameters=parameters or None
        )
        return number

    def next(self) -> tuple[str, Any]:
        """The number of a request and its response."""
        result, error = self._arrived.get(timeout=60)
        if error is not None:
            raise error
        return result.get_response().id, result

    def error(self) -> str:
        _, error = self._arrived.get(timeout=60)
        return str(error.message())

    def leave(self) -> None:
        self._client.stop_stream(cancel_requests=True)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def stream(triton: Any) -> Iterator[Stream]:
    made = Stream(triton.grpc)
    yield made
    made.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_texts_of_a_request_are_decoded_as_by_the_library(
    triton: Any, model: Models, protocol: str
) -> None:
    expected = model("letters").generate(WORDS)
    client = importlib.import_module(f"tritonclient.{protocol}")
    with client.InferenceServerClient(getattr(triton, protocol)) as connection:
        found = connection.infer("letters-once", [tensor(client, "text", WORDS)])
    assert texts_of(found) == [result.text for result in expected]
    reasons = [reason.decode() for reason in found.as_numpy("finish_reason")]
    assert reasons == [result.finish_reason for result in expected]
    for name in ("score", "log_probability"):
        values = [getattr(result, name) for result in expected]
        np.testing.assert_allclose(found.as_numpy(name), values, rtol=1e-4, atol=1e-5)


def test_tokens_are_streamed(stream: Stream, model: Models) -> None:
    (expected,) = model("letters").generate(["dragoman"])
    tokens = list(model("letters").stream("dragoman"))
    stream.ask("letters", ["dragoman"], stream=True)
    parts = [stream.next()[1] for _ in tokens]
    assert [texts_of(part) for part in parts] == [[token.text] for token in tokens]
    np.testing.assert_allclose(
        [part.as_numpy("log_probability")[0] for part in parts],
        [token.log_probability for token in tokens],
        rtol=1e-4,
        atol=1e-5,
    )
    assert all(part.as_numpy("finish_reason") is None for part in parts)
    _, last = stream.next()
    assert texts_of(last) == [expected.text]
    assert last.as_numpy("finish_reason").tolist() == [expected.finish_reason.encode()]


def test_concurrent_requests_of_different_lengths_and_options(
    stream: Stream, model: Models
) -> None:
    asked = {}
    for index in range(40):
        texts = [WORDS[(index + n) % len(WORDS)] for n in range(1 + index % 3)]
        options: dict[str, Any] = {"max_new_tokens": 3 + index % 20}
        if index % 4 == 0:
            options["num_beams"] = 3
        asked[stream.ask("letters", texts, **options)] = (texts, options)
    found = dict(stream.next() for _ in asked)
    for number, (texts, options) in asked.items():
        expected = model("letters").generate(texts, **options)
        assert texts_of(found[number]) == [result.text for result in expected]


def test_options_in_a_tensor(stream: Stream, model: Models) -> None:
    (plain,) = model("letters").generate(["dragoman"])
    assert plain.text is not None
    options: dict[str, Any] = {"must_not_contain": [plain.text[:4].strip()], "num_beams": 2}
    (expected,) = model("letters").generate(["dragoman"], **options)
    assert expected.text != plain.text
    stream.ask("letters", ["dragoman"], options=options)
    assert texts_of(stream.next()[1]) == [expected.text]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_beans": 2}, "num_beans"),
        ({"num_beams": 0}, "num_beams: expected"),
        ({"temperature": -1.0, "do_sample": True}, "temperature: expected"),
        ({"stream": "yes"}, "stream: expected true or false"),
        ({"stream": True, "num_beams": 2}, "num_beams: expected 1 to stream"),
    ],
)
def test_an_invalid_option_does_not_affect_others(
    triton: Any, stream: Stream, model: Models, parameters: dict[str, Any], message: str
) -> None:
    wrong = Stream(triton.grpc)
    numbers = [stream.ask("letters", [word]) for word in WORDS]
    wrong.ask("letters", ["dragoman"], **parameters)
    assert message in wrong.error()
    found = dict(stream.next() for _ in numbers)
    expected = [result.text for result in model("letters").generate(WORDS)]
    assert [texts_of(found[number])[0] for number in numbers] == expected
    wrong.close()


def test_an_unreadable_text_is_an_error(stream: Stream) -> None:
    stream.ask("letters", ["a", "!"])
    assert stream.error().startswith("1: ")


def test_a_cancelled_client_does_not_affect_others(
    triton: Any, stream: Stream, model: Models
) -> None:
    leaving = Stream(triton.grpc)
    for word in WORDS:
        leaving.ask("letters", [word] * 8)
    numbers = [stream.ask("letters", [word]) for word in WORDS]
    leaving.leave()
    found = dict(stream.next() for _ in numbers)
    expected = [result.text for result in model("letters").generate(WORDS)]
    assert [texts_of(found[number])[0] for number in numbers] == expected


def test_embeddings(stream: Stream, model: Models) -> None:
    texts = ["the man is eating", "paris", "a food in france."]
    stream.ask("vectors", texts)
    found = stream.next()[1].as_numpy("embedding")
    np.testing.assert_allclose(found, model("vectors").encode(texts), rtol=1e-4, atol=1e-5)


def test_an_encoder_only_model_does_not_stream(stream: Stream) -> None:
    stream.ask("vectors", ["paris"], stream=True)
    assert "found an encoder-only model" in stream.error()


def test_a_model_without_streaming_refuses_streams(stream: Stream) -> None:
    stream.ask("letters-once", ["dragoman"], stream=True)
    assert "--no-streaming" in stream.error()


def test_generate_over_http(triton: Any, model: Models) -> None:
    (expected,) = model("letters").generate(["dragoman"], num_beams=3)
    found = post(triton.http, "generate", {"text": "dragoman", "num_beams": 3})
    assert json.loads(found)["text"] == expected.text
    stream = post(triton.http, "generate_stream", {"text": "dragoman", "stream": True})
    lines = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    *parts, last = lines
    assert [part["text"] for part in parts] == [t.text for t in model("letters").stream("dragoman")]
    assert last["finish_reason"] in ("end", "length")
