"""Malformed requests of KServe's protocol are refused before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dragoman.runtime.decoding.results import Result
from dragoman.runtime.serving.apis.bodies import MOST_SOURCES
from dragoman.runtime.serving.apis.open_inference import decoder_tensors
from dragoman.runtime.serving.service import Service

from .conftest import serving

TENSOR: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
INFER = "/v2/models/letters/infer"


@pytest.fixture(scope="module")
def client(bundle: Callable[[str], Path]) -> Iterator[httpx.Client]:
    with serving({"letters": bundle("letters")}) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def generate(*_: Any, **__: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(Service, "generate", generate)


def check(answer: httpx.Response, words: str) -> None:
    assert (answer.status_code, set(answer.json())) == (400, {"error"}), answer.text
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"datatype": []}, "text: expected a datatype of BOOL, "),
        ({"datatype": {"a": 1}}, "text: expected a datatype of BOOL, "),
        ({"shape": [2**70]}, "text: expected as many values as shape [1180591620717411303424] has"),
        ({"shape": [2**32, 2**32], "data": []}, "text: expected as many values as shape "),
        ({"shape": [0, 2**70], "data": []}, "text: expected a shape, found [0, 118059"),
        (
            {"shape": [1] * 9},
            "text: expected a shape of at most 8 sizes, none negative, found [1, 1, ",
        ),
        (
            {"shape": [True]},
            "text: expected a shape of at most 8 sizes, none negative, found [True]",
        ),
        ({"shape": [-1]}, "text: expected a shape of at most 8 sizes, none negative, found [-1]"),
        ({"datatype": "FP32", "data": [1e300]}, "text: expected numbers of FP32: "),
        ({"datatype": "FP32", "data": [10**400]}, "text: expected numbers of FP32: "),
        (
            {"shape": [MOST_SOURCES + 1], "data": ["a"] * (MOST_SOURCES + 1)},
            "text: expected at most 1024 of them, found 1025",
        ),
    ],
)
def test_tensors(client: httpx.Client, change: dict[str, Any], words: str) -> None:
    check(client.post(INFER, json={"inputs": [TENSOR | change]}), words)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([{"name": []}], "outputs: expected one of text, score, log_probability, finish_reason, "),
        ([{"name": "embedding"}], "found 'embedding'"),
        ([{}], "found None"),
        ([{"name": "text", "parameters": [1]}], "outputs: expected parameters of text, found [1]"),
        ([{"name": "text"}, {"name": "text"}], "outputs: expected each name once, found text"),
        ({"name": "text"}, "outputs: expected a list of objects"),
        (0, "outputs: expected a list of objects"),
    ],
)
def test_outputs(client: httpx.Client, outputs: Any, words: str) -> None:
    check(client.post(INFER, json={"inputs": [TENSOR], "outputs": outputs}), words)


@pytest.mark.parametrize("timeout", [10**400, -1, 2**63, True, "1", [], 1e300])
def test_timeouts(client: httpx.Client, timeout: Any) -> None:
    body = {"inputs": [TENSOR], "parameters": {"timeout": timeout}}
    check(client.post(INFER, json=body), "timeout: expected microseconds, 0 to 9223372036854775807")


@pytest.mark.parametrize("length", ["9" * 5000, "", "-1", "1e3", "3"])
def test_lengths_of_headers(client: httpx.Client, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    answer = client.post(INFER, content=b"{}", headers=headers)
    check(answer, "Inference-Header-Content-Length: expected at most 2, found ")


def test_a_score_that_is_too_large_is_the_largest() -> None:
    result = Result("a", (1,), -2.0, "end", score=-1e300)
    tensors = {tensor.name: tensor.values for tensor in decoder_tensors([result])}
    assert tensors["score"].tolist() == [np.finfo(np.float32).min]
    assert tensors["log_probability"].tolist() == [-2.0]
