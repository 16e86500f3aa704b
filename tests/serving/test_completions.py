"""OpenAI's completions, as its client asks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.runtime import Model

from .conftest import serving

Models = Callable[[str], Model]


@pytest.fixture(scope="module")
def server(bundle: Callable[[str], Path]) -> Iterator[httpx.Client]:
    with serving({"verses": bundle("verses"), "letters": bundle("letters")}) as client:
        yield client


@pytest.fixture
def client(server: httpx.Client) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.base_url.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none needed", max_retries=0) as client:
        yield client


PROMPT = "In the beginning"


def test_greedy(client: openai.OpenAI, model: Models) -> None:
    answer = client.completions.create(
        model="verses", prompt=PROMPT, max_tokens=9, temperature=0, logprobs=2
    )
    (result,) = model("verses").generate(
        [PROMPT], max_new_tokens=9, num_beams=1, do_sample=False, alternatives=2
    )
    (choice,) = answer.choices
    assert choice.text == result.text
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == list(result.hypotheses[0].token_log_probabilities)
    assert [len(top) for top in choice.logprobs.top_logprobs or ()] == [2] * 9
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(model("verses").tokenize(PROMPT))
    assert answer.usage.completion_tokens == 9


def test_samples(client: openai.OpenAI, model: Models) -> None:
    asked = {"max_tokens": 7, "temperature": 0.8, "top_p": 0.9, "seed": 11, "n": 3}
    answer = client.completions.create(model="verses", prompt=[PROMPT, "And"], **asked)  # type: ignore[call-overload]
    expected = model("verses").generate(
        [PROMPT, "And"],
        max_new_tokens=7,
        do_sample=True,
        temperature=0.8,
        top_p=0.9,
        top_k=0,
        seed=11,
        num_return_sequences=3,
    )
    assert [c.text for c in answer.choices] == [h.text for r in expected for h in r.hypotheses]


def test_options_of_decoding_are_fields(client: openai.OpenAI, model: Models) -> None:
    """In `openai` they are extra fields, as for vLLM."""
    extras: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"top_k": 3, "min_p": 0.01}, {"do_sample": True, "temperature": 1.0}),
        ({"min_tokens": 8, "must_not_contain": ["the"]}, {"do_sample": True, "temperature": 1.0}),
        ({"num_beams": 3, "length_penalty": 0.5}, {"num_beams": 3}),
        ({"do_sample": False, "temperature": 0.5, "top_p": 0.5}, {}),
    ]
    for fields, also in extras:
        named = {k: v for k, v in fields.items() if k not in ("min_tokens", "temperature", "top_p")}
        expected = model("verses").generate(
            [PROMPT],
            max_new_tokens=9,
            **{"min_new_tokens": fields.get("min_tokens", 0), "num_beams": 1}
            | named
            | also
            | ({"top_k": fields.get("top_k", 0), "seed": 5} if "do_sample" in also else {}),
        )
        answer = client.completions.create(
            model="verses", prompt=PROMPT, max_tokens=9, seed=5, extra_body=fields
        )
        assert answer.choices[0].text == expected[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_fields_as_the_client_does(client: openai.OpenAI, stream: bool) -> None:
    for fields, words in (
        ({"max_tokens": 0}, "^Error code: 400.*max_tokens: expected an integer of at least 1"),
        ({"max_tokens": 10**9}, "max_tokens: expected at most"),
        ({"min_tokens": 99}, "min_tokens: expected at most max_tokens 16, found 99"),
        ({"top_k": -1}, "top_k: expected an integer of at least 0"),
        ({"num_beams": 2, "do_sample": True}, "num_beams: expected 1, or no do_sample"),
        ({"max_new_tokens": 5}, "unknown: max_new_tokens"),
        ({"beams": 5}, "unknown: beams"),
        ({"max_token": 5}, "unknown: max_token; the nearest is max_tokens"),
    ):
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            client.completions.create(
                model="verses", prompt="a", stream=stream, temperature=1, extra_body=fields
            )
        assert "new_tokens: " not in caught.value.message
    for name, value in (("n", 0), ("logprobs", 10**9)):
        with pytest.raises(openai.BadRequestError, match=f"{name}: expected"):
            client.completions.create(model="verses", prompt="a", extra_body={name: value})


GREEDY: Any = {"model": "verses", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
WITH_USAGE: Any = {"stream": True, "stream_options": {"include_usage": True}}


def test_stop(client: openai.OpenAI) -> None:
    """At once and streamed, where the beginning of a stop must not slip out."""
    whole = client.completions.create(**GREEDY).choices[0].text
    stop = whole[20:24]
    expected = whole[: whole.index(stop)]
    at_once = client.completions.create(**GREEDY, stop=[stop, "never"])
    assert (at_once.choices[0].text, at_once.choices[0].finish_reason) == (expected, "stop")
    *chunks, last = list(client.completions.create(**GREEDY, stop=stop, **WITH_USAGE))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage == at_once.usage
    *chunks, last = list(client.completions.create(**GREEDY, **WITH_USAGE))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage is not None
    assert last.usage.completion_tokens == 40


def test_tokens_after_a_stop_are_not_reported(client: openai.OpenAI, model: Models) -> None:
    whole = client.completions.create(**GREEDY, logprobs=1).choices[0]
    assert whole.logprobs is not None
    pieces = model("verses").text_stream()
    assert pieces is not None
    (result,) = model("verses").generate([PROMPT], max_new_tokens=40, num_beams=1, do_sample=False)
    texts = [pieces.step(token) for token in result.tokens]
    assert whole.logprobs.text_offset == [sum(map(len, texts[:n])) for n in range(40)]
    begin = whole.logprobs.text_offset[7] + 1  # within the eighth token
    answer = client.completions.create(**GREEDY, logprobs=1, stop=whole.text[begin:])
    choice = answer.choices[0]
    assert choice.text == whole.text[:begin]
    assert choice.logprobs is not None
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert getattr(choice.logprobs, name) == getattr(whole.logprobs, name)[:8]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_usage_counts_tokens_up_to_a_stop(client: openai.OpenAI, server: httpx.Client) -> None:
    """A stream ends there, and the rest is not decoded."""

    def metrics() -> dict[str, float]:
        found = re.findall(r'dragoman_(\w+)\{model="verses"\} (\S+)', server.get("/metrics").text)
        return {name: float(value) for name, value in found}

    asked = GREEDY | {"max_tokens": 150}
    whole = client.completions.create(**asked).choices[0].text
    before = metrics()
    *_, last = client.completions.create(**asked, stop=whole[8:12], **WITH_USAGE)
    while (after := metrics())["rows_in_use"]:
        pass  # until it is left
    new = {name: after[name] - before[name] for name in after}
    assert last.usage is not None
    assert last.usage.completion_tokens <= new["tokens_total"] < 20
    for name in ("queue_seconds", "time_to_first_token_seconds", "time_per_token_seconds"):
        assert new[f"{name}_count"] == 1
    assert new["decoder_step_seconds_count"] < 150


def test_echo(client: openai.OpenAI, model: Models) -> None:
    """A prompt of token ids is shown as its text."""
    ids = model("verses").tokenize(PROMPT)
    answer = client.completions.create(**GREEDY | {"prompt": [PROMPT, "And"]}, echo=True)
    of_ids = client.completions.create(**GREEDY | {"prompt": ids}, echo=True)
    assert answer.choices[0].text.startswith(PROMPT)
    assert answer.choices[1].text.startswith("And")
    assert of_ids.choices[0].text == answer.choices[0].text
    assert of_ids.usage is not None
    assert of_ids.usage.completion_tokens == 40


def test_mistakes(client: openai.OpenAI) -> None:
    for options, words in (
        ({"prompt": ""}, "prompt: expected at least one token"),
        ({"prompt": "", "stream": True}, "prompt: expected at least one token"),
        ({"prompt": [1, 100_000], "stream": True}, "expected token ids in"),
        ({"prompt": "a" * 5000, "stream": True}, "expected at most"),
        ({"stream": True, "logprobs": 2}, "logprobs: expected none with stream, found 2"),
        ({"echo": True, "logprobs": 0}, "logprobs: expected none with echo, found 0"),
        ({"frequency_penalty": 1.0}, "frequency_penalty: expected 0"),
        ({"n": 2, "temperature": 0}, "n: expected 1 with temperature 0"),
        ({"max_tokens": 100_000}, "max_tokens: expected at most"),
        ({"stop": ["", "a"]}, "stop: expected at most 4 strings"),
    ):
        asked: Any = {"model": "verses", "prompt": "a"} | options
        with pytest.raises(openai.BadRequestError, match=words):
            client.completions.create(**asked)
    with pytest.raises(openai.BadRequestError, match="is not a decoder-only model; use /v1/gen"):
        client.completions.create(model="letters", prompt="a")
