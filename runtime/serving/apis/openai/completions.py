"""OpenAI's protocol: completions, as one answer or as they come."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError

from ....decoding.rejection import RejectedError
from ....decoding.results import Hypothesis, Result, Token
from ....model import Model
from ...service import Ended, Service
from ..bodies import Fields, json_object
from ..http import Events, FailedStreamError, event, primed, problem_of
from .completion_request import Completion
from .errors import error_body
from .stops import UntilStop
from .usage import prompt_tokens, usage

Items = AsyncGenerator[Token | Ended, None]


async def completions(service: Service, request: Request) -> Response:
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.need("model", str))
    if host.manifest.head is None and host.manifest.model.has_encoder:
        raise DragomanError(
            f"completions: expected a decoder alone, {host.name} reads a source: use /v1/generate"
        )
    asked = Completion(fields)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": host.name,
    }
    if asked.stream:
        count = partial(prompt_tokens, asked.prompts)
        read = await service.with_model(host, count) if asked.with_usage else 0
        items = service.stream(host, asked.prompts[0], asked.options)
        return Events(_events(await primed(_checked(items)), items, asked, head, read))
    options = [asked.options] * len(asked.prompts)
    results = await service.generate(host, asked.prompts, options)
    for result in results:
        _check_result(result)
    return JSONResponse(head | await service.with_model(host, partial(_answer, asked, results)))


def _answer(asked: Completion, results: Sequence[Result], model: Model) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    new = 0
    for prompt, result in zip(asked.prompts, results, strict=True):
        before = _text_of(prompt, model) if asked.echo else ""
        for hypothesis in result.hypotheses:
            output = _until_stop(hypothesis, asked.stops, model)
            text = output.text if output.stopped else hypothesis.text or ""
            ended = output.stopped or hypothesis.finish_reason == "end"
            new += len(output.offsets)
            choices.append(
                {
                    "index": len(choices),
                    "text": before + text,
                    "finish_reason": "stop" if ended else "length",
                    "logprobs": None
                    if asked.logprobs is None
                    else _logprobs(hypothesis, output.offsets, model),
                }
            )
    return {"choices": choices, "usage": usage(prompt_tokens(asked.prompts, model), new)}


def _text_of(prompt: str | list[int], model: Model) -> str:
    return prompt if isinstance(prompt, str) else model.detokenize(prompt) or ""


def _until_stop(hypothesis: Hypothesis, stops: Sequence[str], model: Model) -> UntilStop:
    output, stream = UntilStop(stops), model.text_stream()
    for token in hypothesis.tokens:
        output.add("" if stream is None else stream.step(token))
        if output.stopped:
            break
    return output


def _logprobs(hypothesis: Hypothesis, offsets: list[int], model: Model) -> dict[str, Any]:
    """
    Args:
        offsets: of the tokens that are reported, in the text
    """
    count = len(offsets)
    return {
        "tokens": [model.token_text(token) for token in hypothesis.tokens[:count]],
        "token_logprobs": [_finite(v) for v in hypothesis.token_log_probabilities[:count]],
        "top_logprobs": [
            {
                a.text if a.text is not None else str(a.token): _finite(a.log_probability)
                for a in each
            }
            for each in hypothesis.alternatives[:count]
        ],
        "text_offset": offsets,
    }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -9999.0


async def _checked(items: Items) -> AsyncIterator[Token | Ended]:
    """The same items.

    Raises:
        RejectedError: the prompt could not be continued.
    """
    async for item in items:
        if isinstance(item, Ended):
            _check_result(item.result)
        yield item


async def _events(
    items: AsyncIterator[Token | Ended],
    source: Items,
    asked: Completion,
    head: dict[str, Any],
    read: int,
) -> AsyncIterator[str]:
    """Chunks with text, held back as far as it could be the beginning of a stop.

    Args:
        source: where the items come from; closed at a stop, so that no more of it is decoded
        read: tokens of the prompt
    """
    output, last, reason = UntilStop(asked.stops), "", "stop"
    try:
        async with aclosing(source):
            async for item in items:
                if isinstance(item, Ended):
                    last = output.rest()
                    reason = "stop" if item.result.finish_reason == "end" else "length"
                    continue
                text = output.add(item.text or "")
                if output.stopped:
                    last = text
                    break
                if text:
                    yield event(_chunk(head, text, None))
        yield event(_chunk(head, last, reason))
        if asked.with_usage:
            used = usage(read, len(output.offsets))
            yield event({**head, "choices": [], "usage": used})
        yield event("[DONE]")
    except Exception as error:
        problem = problem_of(error)
        yield event(error_body(problem))
        raise FailedStreamError(problem.status) from error


def _chunk(head: dict[str, Any], text: str, reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    return {**head, "choices": [choice]}


def _check_result(result: Result) -> None:
    """
    Raises:
        RejectedError: the prompt could not be continued.
    """
    if result.finish_reason == "rejected":
        raise RejectedError(result.error or "rejected")
    if result.finish_reason == "empty":
        raise RejectedError("prompt: expected at least one token, found none")
