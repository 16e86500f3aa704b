"""OpenAI's API: completions."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions
from dragoman.settings.generation_settings import Part, setting_names

from ....decoding.results import Hypothesis, RejectedError, Result, Token
from ....model import Model
from ...service import Service
from ..bodies import OPTION_NAMES, BodyError, Fields, spelled
from ..http import Events, read_request, server_sent_event, started

MOST_STOPS = 4
FIELDS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "alternatives": "logprobs",
}
"""The fields of options that OpenAI, or vLLM, calls otherwise."""
OPTION_FIELDS = {
    name: FIELDS.get(name, name)
    for name in sorted(OPTION_NAMES - {"num_return_sequences", "alternatives", "temperature"})
}
"""The field of each option, besides those that mean something else here."""
OF_SAMPLING = frozenset(setting_names(Part.SAMPLING, of=GenerationOptions))

Items = AsyncGenerator[Token | Result, None]


class CompletionRequest:
    """The fields of a completion request.

    Attributes:
        with_usage: whether a stream ends with the token counts
        echo: whether texts begin with their prompts
        logprobs: number of top tokens reported for each step, if any

    Args:
        splits: the server's default of `split_special_tokens`
    """

    def __init__(self, fields: Fields, *, splits: bool) -> None:
        prompt = fields.require("prompt", (str, list))
        is_single = isinstance(prompt, str) or (bool(prompt) and type(prompt[0]) is int)
        self.prompts: list[Any] = [prompt] if is_single else prompt
        self.stream: bool = fields.take("stream", bool, False)
        self.with_usage = bool(fields.take("stream_options", dict, {}).get("include_usage"))
        self.echo: bool = fields.take("echo", bool, False)
        self.logprobs: int | None = fields.take("logprobs", int)
        stop = fields.take("stop", (str, list), [])
        self.stops: list[str] = [stop] if isinstance(stop, str) else stop
        self.skip_special_tokens: bool = fields.take("skip_special_tokens", bool, True)
        self.split_special_tokens: bool = fields.take("split_special_tokens", bool, splits)
        self._n: int = fields.take("n", int, 1)
        self._temperature = fields.take("temperature", (float, int), 1.0)
        values = {name: fields.pop(field) for name, field in OPTION_FIELDS.items()}
        self._options = {name: value for name, value in values.items() if value is not None}
        for name, neutral in (
            *(("frequency_penalty", 0), ("presence_penalty", 0), ("best_of", self._n)),
            *(("suffix", None), ("logit_bias", {})),
        ):
            value = fields.take(name, (float, int, str, dict), neutral)
            if value != neutral:
                raise BodyError(f"{name}: expected {neutral}, no other value is supported")
        fields.ignore("user")
        fields.end()
        self._check()

    def _check(self) -> None:
        if not self.prompts or not all(_is_prompt(prompt) for prompt in self.prompts):
            raise BodyError("prompt: expected strings or lists of token ids")
        if len(self.stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in self.stops):
            raise BodyError(f"stop: expected at most {MOST_STOPS} strings, none of them empty")
        if self.stream and (len(self.prompts) > 1 or self._n > 1):
            raise BodyError("stream: expected one prompt and n of 1")
        if self.stream and self.echo:
            raise BodyError("stream: expected echo to be false")
        for other, is_set in (("stream", self.stream), ("echo", self.echo)):
            if is_set and self.logprobs is not None:
                raise BodyError(
                    f"logprobs: expected none with {other}, found {shown(self.logprobs)}"
                )

    @property
    def options(self) -> GenerationOptions:
        """Return the generation options of each prompt."""
        values: dict[str, Any] = {"temperature": self._temperature, "top_k": 0} | self._options
        beams = values.get("num_beams", 1) != 1
        if not values.setdefault("do_sample", bool(self._temperature) and not beams):
            # Clients send these with any temperature.
            values = {name: v for name, v in values.items() if name not in OF_SAMPLING}
            if self._n > 1 and not beams:
                raise BodyError(f"n: expected 1 with temperature 0, found {shown(self._n)}")
        # Without a seed, each prompt draws its own random numbers.
        defaults = {"num_beams": 1, "max_new_tokens": 16, "alternatives": self.logprobs or 0}
        return GenerationOptions(
            **defaults | values,
            num_return_sequences=self._n,
            skip_special_tokens=self.skip_special_tokens,
            split_special_tokens=self.split_special_tokens,
        )


def _is_prompt(prompt: Any) -> bool:
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(t) is int for t in prompt)
    return isinstance(prompt, str) or is_ids


class StopBuffer:
    """The text of an output up to the first complete stop string, whose beginning is held back.

    Attributes:
        stopped: whether a stop was found; then nothing more may be added
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self.text, self.stopped = "", False
        self._released, self._token_begins = 0, list[int]()

    def add(self, piece: str) -> str:
        """Add the text of a token, and return the text that is released."""
        self._token_begins.append(len(self.text))
        self.text += piece
        found = [
            (begin + len(stop), begin)
            for stop in self._stops
            if (begin := self.text.find(stop, self._released)) >= 0
        ]
        if found:
            self.text, self.stopped = self.text[: min(found)[1]], True
        before, self._released = self._released, len(self.text) - self._held_back
        return self.text[before : self._released]

    def rest(self) -> str:
        """Return the text still held back at the end."""
        return self.text[self._released :]

    @property
    def offsets(self) -> list[int]:
        """Return the text offsets of the tokens that begin before the stop."""
        if not self.stopped:
            return self._token_begins
        return [begin for begin in self._token_begins if begin < len(self.text)]

    @property
    def _held_back(self) -> int:
        if self.stopped:
            return 0
        return max(
            (
                n
                for stop in self._stops
                for n in range(1, min(len(stop), len(self.text) + 1))
                if self.text.endswith(stop[:n])
            ),
            default=0,
        )


async def completions(service: Service, request: Request) -> Response:
    """Answer a request for completions."""
    fields, served = await read_request(service, request, names_model=True)
    if served.manifest.head is None and served.manifest.model.has_encoder:
        raise DragomanError(f"{served.name} is not a decoder-only model; use /v1/generate")
    completion = CompletionRequest(fields, splits=service.options.split_special_tokens)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
    }
    with spelled(FIELDS):
        if completion.stream:
            count = partial(_prompt_tokens, completion)
            prompt = await service.run_with_model(served, count) if completion.with_usage else 0
            items = service.stream(served, completion.prompts[0], completion.options)
            return Events(_events(await started(_checked(items)), completion, head, prompt))
        options = [completion.options] * len(completion.prompts)
        results = await service.generate(served, completion.prompts, options)
        for result in results:
            _check_result(result)
        body = await service.run_with_model(served, partial(_body, completion, results))
        return JSONResponse(head | body)


def _body(completion: CompletionRequest, results: Sequence[Result], model: Model) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    new_tokens = 0
    for prompt, result in zip(completion.prompts, results, strict=True):
        before = ""
        if completion.echo:
            before = prompt if isinstance(prompt, str) else model.detokenize(prompt) or ""
        for hypothesis in result.hypotheses:
            output = _until_stop(hypothesis, completion, model)
            text = output.text if output.stopped else hypothesis.text or ""
            ended = output.stopped or hypothesis.finish_reason == "end"
            new_tokens += len(output.offsets)
            choices.append(
                {
                    "index": len(choices),
                    "text": before + text,
                    "finish_reason": "stop" if ended else "length",
                    "logprobs": None
                    if completion.logprobs is None
                    else _logprobs(hypothesis, output.offsets, completion, model),
                }
            )
    return {"choices": choices, "usage": _usage(_prompt_tokens(completion, model), new_tokens)}


def _prompt_tokens(completion: CompletionRequest, model: Model) -> int:
    splits = completion.split_special_tokens
    return sum(len(model.tokenize(p, split_special_tokens=splits)) for p in completion.prompts)


def _until_stop(hypothesis: Hypothesis, completion: CompletionRequest, model: Model) -> StopBuffer:
    output = StopBuffer(completion.stops)
    stream = model.text_stream(skip_special_tokens=completion.skip_special_tokens)
    for token in hypothesis.tokens:
        output.add("" if stream is None else stream.step(token))
        if output.stopped:
            break
    return output


def _logprobs(
    hypothesis: Hypothesis, offsets: list[int], completion: CompletionRequest, model: Model
) -> dict[str, Any]:
    count, skips = len(offsets), completion.skip_special_tokens
    return {
        "tokens": [
            model.token_text(token, skip_special_tokens=skips)
            for token in hypothesis.tokens[:count]
        ],
        "token_logprobs": [_finite(v) for v in hypothesis.token_log_probabilities[:count]],
        "top_logprobs": [
            {
                a.text if a.text is not None else str(a.token): _finite(a.log_probability)
                for a in alternatives
            }
            for alternatives in hypothesis.alternatives[:count]
        ],
        "text_offset": offsets,
    }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -9999.0


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


async def _checked(items: Items) -> Items:
    """Yield items; a rejected prompt is an error."""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Result):
                _check_result(item)
            yield item


async def _events(
    items: Items, completion: CompletionRequest, head: dict[str, Any], prompt: int
) -> AsyncGenerator[str, None]:
    output, last, reason = StopBuffer(completion.stops), "", "stop"
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Result):
                last = output.rest()
                reason = "stop" if item.finish_reason == "end" else "length"
                continue
            if item.is_end:
                continue
            text = output.add(item.text or "")
            if output.stopped:
                last = text
                break
            if text:
                yield server_sent_event(_chunk(head, text, None))
    yield server_sent_event(_chunk(head, last, reason))
    if completion.with_usage:
        usage = _usage(prompt, len(output.offsets))
        yield server_sent_event({**head, "choices": [], "usage": usage})
    yield server_sent_event("[DONE]")


def _chunk(head: dict[str, Any], text: str, reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    return {**head, "choices": [choice]}


def _check_result(result: Result) -> None:
    if result.finish_reason == "rejected":
        raise RejectedError(result.error or "rejected")
    if result.finish_reason == "empty":
        raise RejectedError("prompt: expected at least one token, found none")
