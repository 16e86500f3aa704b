"""OpenAI's protocol for texts: models, embeddings, completions."""

from __future__ import annotations

import base64
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from dragoman.errors import DragomanError

from ...decoding.options import GenerationOptions
from ...decoding.rejection import RejectedError
from ...decoding.results import Hypothesis, Result, Token
from ..host import Host
from ..service import Ended, Service
from .bodies import BodyError, Fields, json_object
from .http import Events, FailedStreamError, Problem, event, primed, problem_of, route

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
MOST_INPUTS = 2048
MOST_STOPS = 4


def error_body(problem: Problem) -> dict[str, Any]:
    default = "invalid_request_error" if problem.status < 500 else "server_error"
    kind = TYPES.get(problem.status, default)
    return {
        "error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}
    }


def routes(service: Service) -> list[BaseRoute]:
    return [
        route("/v1/models", partial(_models, service), error_body, method="GET"),
        route("/v1/models/{model}", partial(_model, service), error_body, method="GET"),
        route("/v1/embeddings", partial(_embeddings, service), error_body),
        route("/v1/completions", partial(_completions, service), error_body),
    ]


def _model_data(host: Host) -> dict[str, Any]:
    return {"id": host.name, "object": "model", "created": 0, "owned_by": "dragoman"}


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model_data(h) for h in service.hosts.all]})


async def _model(service: Service, request: Request) -> Response:
    return JSONResponse(_model_data(service.hosts.get(request.path_params["model"])))


async def _embeddings(service: Service, request: Request) -> Response:
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.need("model", str))
    given = fields.need("input", (str, list))
    form = fields.take("encoding_format", str, "float")
    dimensions = fields.take("dimensions", int)
    fields.ignore("user")
    fields.end()
    if form not in ("float", "base64"):
        raise BodyError(f"encoding_format: expected float or base64, found {form!r:.80}")
    single = isinstance(given, str) or (bool(given) and type(given[0]) is int)
    texts: Sequence[Any] = [given] if single else given
    if not 1 <= len(texts) <= MOST_INPUTS:
        raise BodyError(f"input: expected 1 to {MOST_INPUTS}, found {len(texts)}")
    found = await service.read_texts(host, "embeddings", texts, {"truncate": False})
    for index, one in enumerate(found):
        if one.error is not None:
            raise RejectedError(f"input {index}: {one.error}")
    size = len(found[0].vector)
    if dimensions not in (None, size):
        raise BodyError(f"dimensions: expected {size}, those of the model, found {dimensions}")
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(one.vector, form)}
        for index, one in enumerate(found)
    ]
    read = await _tokens(service, host, texts)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse({"object": "list", "data": data, "model": host.name, "usage": usage})


def _vector(vector: Any, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
    return vector.tolist()


class _Completion:
    """What a request for completions asks for."""

    def __init__(self, fields: Fields) -> None:
        prompt = fields.need("prompt", (str, list))
        single = isinstance(prompt, str) or (bool(prompt) and type(prompt[0]) is int)
        self.prompts: list[Any] = [prompt] if single else prompt
        self.stream: bool = fields.take("stream", bool, False)
        self.with_usage = bool(fields.take("stream_options", dict, {}).get("include_usage"))
        self.echo: bool = fields.take("echo", bool, False)
        self.logprobs: int | None = fields.take("logprobs", int)
        stop = fields.take("stop", (str, list), [])
        self.stops: list[str] = [stop] if isinstance(stop, str) else stop
        self._n: int = fields.take("n", int, 1)
        self._temperature = fields.take("temperature", (float, int), 1.0)
        self._top_p = fields.take("top_p", (float, int))
        self._seed: int | None = fields.take("seed", int)
        self._max_tokens: int | None = fields.take("max_tokens", int)
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
            raise BodyError("prompt: expected texts or lists of token ids")
        if len(self.stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in self.stops):
            raise BodyError(f"stop: expected at most {MOST_STOPS} texts, none of them empty")
        if self.stream and (len(self.prompts) > 1 or self._n > 1):
            raise BodyError("stream: expected one prompt and n of 1")
        if self.stream and self.echo:
            raise BodyError("stream: expected echo to be false")

    @property
    def options(self) -> GenerationOptions:
        """
        Raises:
            DragomanError: a value is out of range.
        """
        greedy = self._temperature == 0
        if greedy and self._n > 1:
            raise BodyError(f"n: expected 1 with temperature 0, found {self._n}")
        sampling: dict[str, Any] = {}
        if not greedy:
            # Of several prompts each has random numbers of its own, unless a seed is given.
            sampling = {"temperature": self._temperature, "top_k": 0, "seed": self._seed}
            if self._top_p is not None:
                sampling["top_p"] = self._top_p
        return GenerationOptions(
            do_sample=not greedy,
            num_beams=1,
            num_return_sequences=self._n,
            max_new_tokens=16 if self._max_tokens is None else self._max_tokens,
            alternatives=self.logprobs or 0,
            **sampling,
        )


def _is_prompt(prompt: Any) -> bool:
    ids = isinstance(prompt, list) and bool(prompt) and all(type(t) is int for t in prompt)
    return isinstance(prompt, str) or ids


async def _completions(service: Service, request: Request) -> Response:
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.need("model", str))
    if host.manifest.head is None and host.manifest.model.has_encoder:
        raise DragomanError(
            f"completions: expected a decoder alone, {host.name} reads a source: use /v1/generate"
        )
    asked = _Completion(fields)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": host.name,
    }
    if asked.stream:
        items = service.stream(host, asked.prompts[0], asked.options)
        read = await _tokens(service, host, asked.prompts) if asked.with_usage else 0
        return Events(_events(await primed(items), asked, head, read))
    options = [asked.options] * len(asked.prompts)
    results = await service.generate(host, asked.prompts, options)
    piece = await service.with_model(host, lambda model: model.token_text)
    choices: list[dict[str, Any]] = []
    for prompt, result in zip(asked.prompts, results, strict=True):
        _check_result(result)
        for hypothesis in result.hypotheses:
            text, reason = _until_stop(hypothesis, asked.stops)
            if asked.echo and isinstance(prompt, str):
                text = prompt + text
            choices.append(
                {
                    "index": len(choices),
                    "text": text,
                    "finish_reason": reason,
                    "logprobs": None if asked.logprobs is None else _logprobs(hypothesis, piece),
                }
            )
    new = sum(len(h.tokens) for result in results for h in result.hypotheses)
    usage = _usage(await _tokens(service, host, asked.prompts), new)
    return JSONResponse({**head, "choices": choices, "usage": usage})


async def _events(
    items: AsyncIterator[Token | Ended], asked: _Completion, head: dict[str, Any], read: int
) -> AsyncIterator[str]:
    """Chunks with text, held back as far as it could be the beginning of a stop."""
    held, count, reason = "", 0, None
    try:
        async for item in items:
            if isinstance(item, Ended):
                _check_result(item.result)
                reason = "stop" if item.result.finish_reason == "end" else "length"
                break
            count += 1
            held += item.text or ""
            places = [held.find(stop) for stop in asked.stops if stop in held]
            if places:
                held, reason = held[: min(places)], "stop"
                break
            ready = len(held) - _beginning_of_stop(held, asked.stops)
            if ready:
                yield event(_chunk(head, held[:ready], None))
                held = held[ready:]
        yield event(_chunk(head, held, reason))
        if asked.with_usage:
            yield event({**head, "choices": [], "usage": _usage(read, count)})
        yield event("[DONE]")
    except Exception as error:
        problem = problem_of(error)
        yield event(error_body(problem))
        raise FailedStreamError(problem.status) from error


def _chunk(head: dict[str, Any], text: str, reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    return {**head, "choices": [choice]}


def _beginning_of_stop(text: str, stops: Sequence[str]) -> int:
    """How many of the last characters could be the beginning of a stop."""
    return max(
        (
            n
            for stop in stops
            for n in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:n])
        ),
        default=0,
    )


def _until_stop(hypothesis: Hypothesis, stops: Sequence[str]) -> tuple[str, str]:
    text = hypothesis.text or ""
    places = [text.find(stop) for stop in stops if stop in text]
    if places:
        return text[: min(places)], "stop"
    return text, "stop" if hypothesis.finish_reason == "end" else "length"


def _logprobs(hypothesis: Hypothesis, piece: Callable[[int], str]) -> dict[str, Any]:
    count = len(hypothesis.tokens)
    best = hypothesis.alternatives[:count]
    pieces = [piece(token) for token in hypothesis.tokens]
    offsets = [0, *accumulate(map(len, pieces))][:count]
    return {
        "tokens": pieces,
        "token_logprobs": [_finite(v) for v in hypothesis.token_log_probabilities[:count]],
        "top_logprobs": [
            {
                a.text if a.text is not None else str(a.token): _finite(a.log_probability)
                for a in each
            }
            for each in best
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


async def _tokens(service: Service, host: Host, sources: Sequence[Any]) -> int:
    """How many tokens sources have together."""
    return await service.with_model(
        host, lambda model: sum(len(model.tokenize(source)) for source in sources)
    )


def _check_result(result: Result) -> None:
    """
    Raises:
        RejectedError: the prompt could not be continued.
    """
    if result.finish_reason == "rejected":
        raise RejectedError(result.error or "rejected")
    if result.finish_reason == "empty":
        raise RejectedError("prompt: expected at least one token, found none")
