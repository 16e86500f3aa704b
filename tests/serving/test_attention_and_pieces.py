"""What the page requests besides outputs: the text of each token, and attention weights.

`AsyncModel` computes the weights, too, and what is read from them.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from dragoman.runtime import (
    AbilityError,
    AsyncModel,
    CancelError,
    DeadlineError,
    DragomanError,
    Model,
    arguments,
)
from dragoman.runtime.backends.interface import BackendError, ClosedModelError
from dragoman.runtime.model import parts_of

from ..speech_models import RATE, noise
from .conftest import serving

Models = Callable[[str], Model]
NAMES = ("letters", "vectors", "speech")


@pytest.fixture(scope="module")
def client(bundle: Callable[[str], Path]) -> Iterator[httpx.Client]:
    with serving({name: bundle(name) for name in NAMES}) as client:
        yield client


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def test_bundles_describe_their_inputs(client: httpx.Client) -> None:
    found = client.get("/v1/bundles").json()["bundles"]
    assert [(b["name"], b["takes"]) for b in found] == [
        ("letters", "text"),
        ("vectors", "text"),
        ("speech", "audio"),
    ]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_pieces_add_up_to_texts(client: httpx.Client, num_beams: int) -> None:
    body = {"model": "letters", "source": "dragoman", "num_beams": num_beams}
    (plain,) = ask(client, "/v1/generate", **body).json()["results"]
    assert "pieces" not in plain["hypotheses"][0]
    body |= {"pieces": True, "num_return_sequences": num_beams}
    (found,) = ask(client, "/v1/generate", **body).json()["results"]
    for hypothesis in found["hypotheses"]:
        assert len(hypothesis["pieces"]) == len(hypothesis["tokens"])
        assert "".join(hypothesis["pieces"]) == hypothesis["text"]


def test_the_end_of_a_stream_has_pieces(client: httpx.Client) -> None:
    text = ask(
        client, "/v1/generate", model="letters", source="dragoman", stream=True, pieces=True
    ).text
    *tokens, last = [part for part in text.split("\n\n") if part]
    pieces = [json.loads(token.removeprefix("data: "))["text"] for token in tokens]
    (hypothesis,) = json.loads(last.removeprefix("event: end\ndata: "))["hypotheses"]
    assert hypothesis["pieces"] == pieces


def test_attention_without_the_end_token(client: httpx.Client, model: Models) -> None:
    body = {"model": "letters", "source": "dragoman", "target": [11, 30], "end_token": False}
    found = ask(client, "/v1/attention", **body).json()
    expected = model("letters").attention("dragoman", [11, 30], end_token=False)
    assert tuple(found["rows"]) == expected.target and len(found["rows"]) == 2
    np.testing.assert_allclose(found["weights"], expected.aligning, atol=1e-4)


def test_no_file_on_the_server_is_read(client: httpx.Client, tmp_path: Path) -> None:
    """The library takes paths of audio files; the server takes only what clients send."""
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, noise(0.5, 1), RATE)
    answer = client.post("/v1/attention", json={"model": "speech", "source": str(clip)})
    assert answer.status_code == 400
    assert "expected audio, an audio file in base64, found texts" in answer.json()["error"]


def test_calls_of_a_model_can_be_cancelled(model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    letters, event = model("letters"), threading.Event()
    (result,) = letters.generate(["dragoman"], max_new_tokens=5)
    pair = ("dragoman", list(result.tokens))
    assert letters.align([pair], timeout=600, cancel=event) == letters.align([pair])
    event.set()
    aligner = parts_of(letters).aligner  # the letters have no unknown token
    monkeypatch.setattr(aligner, "with_unknown_replaced", lambda *given: given[-1]())
    for call in (
        lambda: letters.attention("dragoman", cancel=event),
        lambda: letters.attention(*pair, cancel=event),
        lambda: letters.align([pair], cancel=event),
        lambda: letters.replace_unknown("dragoman", result, cancel=event),
    ):
        with pytest.raises(CancelError, match="the call was cancelled"):
            call()
    with pytest.raises(DragomanError, match=r"^timeout: expected seconds above 0, found 0$"):
        letters.align([pair], timeout=0)


MISTAKES: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "letters"}, 400, "expected one of source, sources and audio, found none"),
    ({"model": "letters", "sources": ["a", "b"]}, 400, "sources: expected one, found 2"),
    ({"model": "letters", "source": "a", "layer": 1}, 400, "unknown: layer; options are end_token"),
    ({"model": "letters", "source": "a", "tagret": 1}, 400, "; the nearest is target"),
    ({"model": "letters", "source": "a", "end_token": 1}, 400, "end_token: expected True or False"),
    ({"model": "vectors"}, 400, "source: required field is missing"),
    ({"model": "vectors", "sorce": "a"}, 400, "required field is missing; found sorce"),
    ({"model": "vectors", "source": ["a", 1]}, 400, "expected a string or a list of token ids"),
    ({"model": "speech", "audio": "!"}, 400, "audio: expected base64"),
]


@pytest.mark.parametrize(("body", "status", "words"), MISTAKES, ids=[m[2][:40] for m in MISTAKES])
def test_mistakes(client: httpx.Client, body: dict[str, Any], status: int, words: str) -> None:
    answer = client.post("/v1/attention", json=body)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "code"})
    assert words in answer.json()["error"]


def test_audio_of_a_bundle_without_the_graph(client: httpx.Client, tmp_path: Path) -> None:
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, noise(0.5, 1), RATE)
    audio = base64.b64encode(clip.read_bytes()).decode()
    answer = client.post("/v1/attention", json={"model": "speech", "audio": audio})
    assert answer.status_code == 400
    assert "attention" in answer.json()["error"]


def asynchronously(bundle: Path, work: Callable[[AsyncModel], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await AsyncModel.load(bundle, workers=1, threads=1) as model:
            await asyncio.wait_for(work(model), 120)

    asyncio.run(main())


def test_async_methods_of_attention_give_what_those_of_a_model_give(
    bundle: Callable[[str], Path], model: Models
) -> None:
    words = ["dragoman", "a", "interpreter"]
    results = model("letters").generate(words, max_new_tokens=9)
    pairs = [(word, result.tokens) for word, result in zip(words, results, strict=True)]
    pairs.append(("1+1", (4,)))
    aligned = model("letters").align(pairs)
    assert [pair.error is None for pair in aligned] == [True, True, True, False]

    async def work(served: AsyncModel) -> None:
        calls: list[Any] = [
            served.attention("dragoman"),
            served.attention("a", [11, 30], end_token=False),
            served.align(pairs),
        ]
        own, given, found_pairs = await asyncio.gather(*calls)
        for found, expected in (
            (own, model("letters").attention("dragoman")),
            (given, model("letters").attention("a", [11, 30], end_token=False)),
        ):
            assert (found.source, found.target) == (expected.source, expected.target)
            for name in ("encoder", "decoder", "cross"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert found_pairs == aligned
        with pytest.raises(DragomanError, match="expected a list of inputs, found one"):
            await served.align("dragoman")  # type: ignore[arg-type]
        with pytest.raises(DragomanError, match="cancel: expected an object with is_set"):
            await served.attention("a", cancel=3)  # type: ignore[arg-type]
        await served.close()
        with pytest.raises(ClosedModelError):
            await served.attention("dragoman")

    asynchronously(bundle("letters"), work)


def test_async_methods_of_attention_are_refused_like_those_of_a_model(
    bundle: Callable[[str], Path],
) -> None:
    async def work(served: AsyncModel) -> None:
        with pytest.raises(BackendError, match="--with-attention"):
            await served.attention("the man")
        with pytest.raises(AbilityError, match="found vectors, a model that computes embeddings"):
            await served.align([])

    asynchronously(bundle("vectors"), work)


@pytest.mark.parametrize("name", ["score", "attention", "align", "replace_unknown"])
def test_async_methods_in_threads_have_the_arguments_of_a_model(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(AsyncModel, name))
    signature = inspect.signature(getattr(AsyncModel, name))
    assert signature == inspect.signature(getattr(Model, name))


def test_the_time_of_a_call_that_waits_for_a_thread_counts(
    bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores occupy all threads while the time of other calls runs out, or they are cancelled."""
    begun, go_on, cancel = threading.Semaphore(0), threading.Event(), threading.Event()
    now = 0.0
    monkeypatch.setattr(arguments, "time", SimpleNamespace(monotonic=lambda: now))

    async def work(served: AsyncModel) -> None:
        nonlocal now
        score = served.model.backend.score

        def slow(*inputs: Any) -> Any:
            begun.release()
            assert go_on.wait(60)
            return score(*inputs)

        monkeypatch.setattr(served.model.backend, "score", slow)
        scores = [asyncio.ensure_future(served.score([("ab", [4])])) for _ in "ab"]
        for _ in scores:
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        late = asyncio.ensure_future(served.attention("dragoman", [11], timeout=2))
        in_time = asyncio.ensure_future(served.attention("dragoman", [11], timeout=4))
        cancelled = asyncio.ensure_future(served.align([("dragoman", [11])], cancel=cancel))
        await asyncio.sleep(0)
        now = 3.0
        cancel.set()
        go_on.set()
        with pytest.raises(DeadlineError, match="the call was not done within 2 s"):
            await late
        assert len((await in_time).target) == 2
        with pytest.raises(CancelError):
            await cancelled
        await asyncio.gather(*scores)

    asynchronously(bundle("letters"), work)
