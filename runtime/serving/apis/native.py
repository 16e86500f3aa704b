"""Dragoman's own protocol: every option, every output; as one answer or token by token."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from ...attention.maps import Attention, Weights
from ...decoding.plain import result_data
from ...decoding.results import Result, Token
from ...model import Model
from ...scoring.options import ScoringOptions
from ..engine.texts import ABILITIES
from ..host import Host
from ..service import Ended, Service
from .bodies import BodyError, Fields, json_object
from .http import Events, FailedStreamError, Problem, event, primed, problem_of, route
from .options import MOST_SOURCES, generation_options

MOST_COUNTED = 1000
"""Best tokens of a mask, and tokens of an answer."""
OF_SCORING = sorted({f.name for f in dataclasses.fields(ScoringOptions)} - {"max_batch_size"})


def error_body(problem: Problem) -> dict[str, str]:
    return {"error": problem.message, "code": problem.code}


def routes(service: Service) -> list[BaseRoute]:
    return [
        route("/v1/generate", partial(_generate, service), error_body),
        route("/v1/attention", partial(_attention, service), error_body),
        *(
            route(f"/v1/{ability}", partial(_read_texts, service, method), error_body)
            for method, ability in ABILITIES.items()
        ),
    ]


async def _generate(service: Service, request: Request) -> Response:
    """{"model", "source" or "sources" or "audio", "stream", "pieces", "timeout", and any option};
    pieces: whether hypotheses have them.
    """
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.take("model", str))
    stream, seconds = fields.take("stream", bool, False), fields.take("timeout", (float, int))
    write = partial(_written, service, host, pieces=fields.take("pieces", bool, False))
    sources = await _sources(service, host, fields)
    options = generation_options(fields.rest)
    if not stream:
        results = await service.generate(host, sources, [options] * len(sources), seconds=seconds)
        return JSONResponse(
            {"model": host.name, "results": [await write(result) for result in results]}
        )
    if len(sources) != 1:
        raise BodyError(f"sources: expected one to stream, found {len(sources)}")
    items = service.stream(host, sources[0], options, seconds=seconds)
    return Events(_events(await primed(items), write))


async def _written(service: Service, host: Host, result: Result, *, pieces: bool) -> dict[str, Any]:
    """
    Args:
        pieces: whether each hypothesis says what each of its tokens adds to its text
    """
    data = result_data(result)
    if pieces and result.hypotheses:
        found = await service.with_model(host, partial(_pieces, result))
        for hypothesis, own in zip(data["hypotheses"], found, strict=True):
            hypothesis["pieces"] = own
    return data


def _pieces(result: Result, model: Model) -> list[list[str] | None]:
    """What tokens add to texts, by hypothesis; None for a bundle without tokenizers."""

    def of(tokens: Sequence[int]) -> list[str] | None:
        stream = model.text_stream()
        return None if stream is None else [stream.step(token) for token in tokens]

    return [of(hypothesis.tokens) for hypothesis in result.hypotheses]


async def _events(
    items: AsyncIterator[Token | Ended], write: Callable[[Result], Awaitable[dict[str, Any]]]
) -> AsyncIterator[str]:
    """A message for each token, an event "end" with the whole result; or "error"."""
    try:
        async for item in items:
            if isinstance(item, Ended):
                yield event(await write(item.result), "end")
            else:
                yield event(dataclasses.asdict(item))
    except Exception as error:
        problem = problem_of(error)
        yield event(error_body(problem), "error")
        raise FailedStreamError(problem.status) from error


async def _sources(service: Service, host: Host, fields: Fields) -> list[Any]:
    one, many = fields.take("source", (str, list)), fields.take("sources", list)
    audio = fields.take("audio", str)
    given = [
        name for name, v in (("source", one), ("sources", many), ("audio", audio)) if v is not None
    ]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise BodyError(f"expected one of source, sources and audio, found {found}")
    if audio is not None:
        return await service.read_audio(host, decoded(audio))
    sources = [one] if many is None else many
    if len(sources) > MOST_SOURCES:
        raise BodyError(f"sources: expected at most {MOST_SOURCES}, found {len(sources)}")
    if host.manifest.audio is not None:
        raise BodyError("expected audio, an audio file in base64, found texts: a speech model")
    for source in sources:
        _check_source(source)
    return sources


def _check_source(source: Any) -> None:
    ids = isinstance(source, list) and all(type(token) is int for token in source)
    if not ids and not isinstance(source, str):
        raise BodyError("source: expected a text or a list of token ids")


def decoded(text: str) -> bytes:
    """
    Raises:
        BodyError: a text is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BodyError(f"audio: expected base64: {error}") from error


async def _read_texts(service: Service, method: str, request: Request) -> Response:
    """{"model", "texts" (or pairs of texts), "timeout", "truncate", and "top" or "longest"}."""
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.take("model", str))
    seconds, texts = fields.take("timeout", (float, int)), fields.need("texts", list)
    options: dict[str, Any] = {"truncate": fields.take("truncate", bool, False)}
    if method == "fill":
        options["top"] = _count(fields, "top", 5)
    if method == "answer":
        options["longest"] = _count(fields, "longest", 15)
    fields.end()
    found = await service.read_texts(host, method, texts, options, seconds=seconds)
    return JSONResponse({"model": host.name, "results": [_plain(one) for one in found]})


def _count(fields: Fields, name: str, default: int) -> int:
    value: int = fields.take(name, int, default)
    if not 1 <= value <= MOST_COUNTED:
        found = value if abs(value) < 10**9 else "another"
        raise BodyError(f"{name}: expected a number from 1 to {MOST_COUNTED}, found {found}")
    return value


def _plain(result: Any) -> dict[str, Any]:
    values = dataclasses.asdict(result)
    if "vector" in values:
        values["vector"] = values["vector"].tolist()
    return values


async def _attention(service: Service, request: Request) -> Response:
    """{"model", "source" or "audio", "target", "timeout", and options of scoring}: what aligns
    words, [target, source], and its tokens; of a decoder or an encoder alone, the mean of its last
    layer.
    """
    fields = Fields(json_object(await request.body()))
    host = service.hosts.get(fields.take("model", str))
    source = await _attended(service, host, fields)
    target, seconds = fields.take("target", (str, list)), fields.take("timeout", (float, int))
    unknown = sorted(fields.rest.keys() - OF_SCORING)
    if unknown:
        raise BodyError(f"unknown: {', '.join(unknown):.200}; options are {', '.join(OF_SCORING)}")
    given = {name: value for name, value in fields.rest.items() if value is not None}
    found = await service.attention(host, source, target, ScoringOptions(**given), seconds=seconds)
    rows, columns, weights = _grid(found)
    return JSONResponse(
        {"columns": columns, "rows": rows, "weights": weights.astype(float).round(4).tolist()}
    )


async def _attended(service: Service, host: Host, fields: Fields) -> Any:
    """The one source of a request; an encoder alone reads pairs of texts, too."""
    if host.manifest.head is not None:
        source = fields.need("source", (str, list))
        pair = isinstance(source, list) and [type(text) for text in source] == [str, str]
        if not pair:
            _check_source(source)
        return tuple(source) if pair else source
    sources = await _sources(service, host, fields)
    if len(sources) != 1:
        raise BodyError(f"sources: expected one, found {len(sources)}")
    return sources[0]


def _grid(found: Attention) -> tuple[Sequence[str], Sequence[str], Weights]:
    """Tokens that attend, tokens that they attend to, and how much."""
    if found.cross is not None:
        return found.target, found.source, found.aligning
    if found.decoder is not None:
        return found.target, found.read, found.decoder[-1].mean(axis=0)
    assert found.encoder is not None  # noqa: S101 (a model has one of them)
    return found.source, found.source, found.encoder[-1].mean(axis=0)
