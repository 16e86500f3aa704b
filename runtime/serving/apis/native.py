"""Dragoman's native API."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dragoman.errors import DragomanError, shown

from ...arguments import abilities_data, check_able, check_count
from ...attention.reader import Attention, Weights
from ...decoding.results import Result, Token, result_data
from ...encoding.results import shortened
from ...encoding.tasks import TEMPLATE, ZeroShot
from ...model import Model
from ...scoring.interface import ScoringOptions
from ..engine.encoder_engine import ABILITIES
from ..models import ServedModel
from ..service import Service
from .bodies import (
    MOST_SOURCES,
    BodyError,
    Fields,
    generation_options,
    option_values,
    prompt_option,
    reading_options,
)
from .http import Endpoint, Events, Protocol, read_request, server_sent_event, started

MOST_RESULTS = 1000
"""The largest `top` of a mask and `longest` of an answer."""
MOST_PAIRS = 16 * MOST_SOURCES
"""The most pairs of a text and a label in a request."""
SCORING_OPTIONS = sorted({f.name for f in dataclasses.fields(ScoringOptions)} - {"max_batch_size"})


def error_body(error: DragomanError) -> dict[str, str]:
    """Return the JSON body of an error."""
    return {"error": str(error), "code": error.code}


async def _health(service: Service, request: Request, *, name: str) -> Response:
    alive = service.models.alive
    return JSONResponse({name: alive}, 200 if alive else 503)


async def _metrics(service: Service, request: Request) -> Response:
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _bundles(service: Service, request: Request) -> Response:
    return JSONResponse({"bundles": list(map(_bundle_data, service.models.all))})


def _bundle_data(served: ServedModel) -> dict[str, Any]:
    manifest, languages = served.manifest, served.manifest.languages
    takes = "ids" if manifest.tokenizers is None else "text"
    return {
        "name": served.name,
        "loaded": served.loaded,
        "takes": takes if manifest.audio is None else "audio",
        "target": manifest.target,
        "precision": manifest.precision,
        **abilities_data(manifest),
        "languages": sorted(languages.tokens) if languages else [],
        "spoken_languages": sorted(manifest.speech.languages) if manifest.speech else [],
        "shows_attention": "attention" in manifest.graphs,
        "max_new_tokens": manifest.default_max_new_tokens,
    }


async def _generate(service: Service, request: Request) -> Response:
    """Decode `source`, `sources` or `audio`; `stream` and `pieces` are booleans."""
    fields, served = await read_request(service, request)
    stream, seconds = fields.take("stream", bool, False), fields.take("timeout", (float, int))
    pieces = fields.take("pieces", bool, False)
    async with _opened_sources(service, served, fields) as sources:
        options = generation_options(fields.rest, fields.known)
        skips = options.skip_special_tokens
        write = partial(_result_data, service, served, pieces=pieces, skip_special_tokens=skips)
        if not stream:
            each = [service.transcription_options(served, options)] * len(sources)
            results = await service.generate(served, sources, each, seconds=seconds)
            return JSONResponse(
                {"model": served.name, "results": [await write(result) for result in results]}
            )
        if len(sources) != 1:
            raise BodyError(f"sources: expected one to stream, found {len(sources)}")
        items = service.stream(served, sources[0], options, seconds=seconds)
        return Events(_events(await started(items), write))


async def _result_data(
    service: Service,
    served: ServedModel,
    result: Result,
    *,
    pieces: bool,
    skip_special_tokens: bool,
) -> dict[str, Any]:
    data = result_data(result)
    if pieces and result.hypotheses:
        found = await service.run_with_model(served, partial(_pieces, result, skip_special_tokens))
        for hypothesis, own in zip(data["hypotheses"], found, strict=True):
            hypothesis["pieces"] = own
    return data


def _pieces(result: Result, skip_special_tokens: bool, model: Model) -> list[list[str] | None]:
    def pieces(tokens: Sequence[int]) -> list[str] | None:
        stream = model.text_stream(skip_special_tokens=skip_special_tokens)
        if stream is None:
            return None
        texts = [stream.step(token) for token in tokens]
        return [*texts[:-1], *(text + stream.rest() for text in texts[-1:])]

    return [pieces(hypothesis.tokens) for hypothesis in result.hypotheses]


async def _events(
    items: AsyncGenerator[Token | Result, None],
    write: Callable[[Result], Awaitable[dict[str, Any]]],
) -> AsyncGenerator[str, None]:
    """Yield an event for each token, and "end" with the whole result."""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Result):
                yield server_sent_event(await write(item), "end")
            else:
                yield server_sent_event(dataclasses.asdict(item))


@asynccontextmanager
async def _opened_sources(
    service: Service, served: ServedModel, fields: Fields
) -> AsyncIterator[Sequence[Any]]:
    one, many = fields.take("source", (str, list)), fields.take("sources", list)
    audio = fields.take("audio", str)
    values = {"source": one, "sources": many, "audio": audio}
    names = [name for name, value in values.items() if value is not None]
    if len(names) != 1:
        found = " and ".join(names) or fields.similar(*values) or "none"
        raise BodyError(f"expected one of source, sources and audio, found {found}")
    if audio is not None:
        vad, cut = fields.rest.get("vad"), fields.rest.get("cut_at_silence") is True
        vad = vad if isinstance(vad, bool) else None
        files = [_from_base64(audio)]
        async with service.opened_audio(served, files, vad=vad, cut=cut) as opened:
            yield opened
        return
    sources = [one] if many is None else many
    if len(sources) > MOST_SOURCES:
        raise BodyError(f"sources: expected at most {MOST_SOURCES}, found {len(sources)}")
    if served.manifest.audio is not None:
        raise BodyError(
            f"{served.name} is a speech model: expected audio, an audio file in base64, found texts"
        )
    for source in sources:
        _check_source(source)
    yield sources


def _check_source(source: Any) -> None:
    is_ids = isinstance(source, list) and all(type(token) is int for token in source)
    if not is_ids and not isinstance(source, str):
        raise BodyError("source: expected a string or a list of token ids")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BodyError(f"audio: expected base64: {error}") from error


async def _run_encoder(service: Service, request: Request, *, method: str) -> Response:
    """Run a method of an encoder-only model on `texts`, by `labels` if there are any."""
    fields, served = await read_request(service, request)
    seconds, texts = fields.take("timeout", (float, int)), fields.require("texts", list)
    options, dimensions = reading_options(fields), None
    if method == "embeddings":
        dimensions = fields.take("dimensions", int)
        options |= prompt_option(fields, served.manifest)
    if method == "fill":
        options["top"] = _count(fields, "top", 5)
    if method == "answer":
        options["longest"] = _count(fields, "longest", 15)
        if (stride := fields.take("stride", int)) is not None:
            check_count("stride", stride)
            options["stride"] = stride
    if method == "classify":
        options["zero_shot"] = _zero_shot(fields, len(texts))
    fields.end()
    if options.get("zero_shot") is not None:
        check_able(served.manifest, "classify_zero_shot")
    results = await service.run_encoder(served, method, texts, options, seconds=seconds)
    data = [dataclasses.asdict(result) for result in results]
    if method == "embeddings":
        for one in data:
            kept = dimensions if one["error"] is None else None
            one["vector"] = shortened(one["vector"], kept).tolist()
    return JSONResponse({"model": served.name, "results": data})


def _zero_shot(fields: Fields, texts: int) -> ZeroShot | None:
    labels = fields.take("labels", list)
    template = fields.take("hypothesis_template", str)
    multi_label = fields.take("multi_label", bool)
    if labels is None:
        if template is not None or multi_label is not None:
            given = "multi_label" if template is None else "hypothesis_template"
            raise BodyError(f"{given}: expected labels, too, found none")
        return None
    if len(labels) * texts > MOST_PAIRS:
        raise BodyError(
            f"labels: expected at most {MOST_PAIRS} pairs of a text and a label, found "
            f"{len(labels) * texts}"
        )
    return ZeroShot.of(labels, TEMPLATE if template is None else template, bool(multi_label))


def _count(fields: Fields, name: str, default: int) -> int:
    value: int = fields.take(name, int, default)
    if not 1 <= value <= MOST_RESULTS:
        raise BodyError(f"{name}: expected a number from 1 to {MOST_RESULTS}, found {shown(value)}")
    return value


async def _attention(service: Service, request: Request) -> Response:
    """Return the cross-attention that aligns words, [target, source].

    Models without it return the mean over the heads of the last layer.
    """
    fields, served = await read_request(service, request)
    async with _attention_source(service, served, fields) as source:
        target, seconds = fields.take("target", (str, list)), fields.take("timeout", (float, int))
        options = ScoringOptions(**option_values(fields.rest, SCORING_OPTIONS, fields.known))
        found = await service.attention(served, source, target, options, seconds=seconds)
    rows, columns, weights = _grid(found)
    return JSONResponse(
        {"columns": columns, "rows": rows, "weights": weights.astype(float).round(4).tolist()}
    )


@asynccontextmanager
async def _attention_source(
    service: Service, served: ServedModel, fields: Fields
) -> AsyncIterator[Any]:
    if served.manifest.head is not None:
        source = fields.require("source", (str, list))
        is_pair = isinstance(source, list) and [type(text) for text in source] == [str, str]
        if not is_pair:
            _check_source(source)
        yield tuple(source) if is_pair else source
        return
    async with _opened_sources(service, served, fields) as sources:
        if len(sources) != 1:
            raise BodyError(f"sources: expected one, found {len(sources)}")
        yield sources[0]


def _grid(found: Attention) -> tuple[Sequence[str], Sequence[str], Weights]:
    if found.cross is not None:
        return found.target, found.source, found.aligning
    if found.decoder is not None:
        return found.target, found.read, found.decoder[-1].mean(axis=0)
    assert found.encoder is not None  # noqa: S101 (a model has one of them)
    return found.source, found.source, found.encoder[-1].mean(axis=0)


PROTOCOL = Protocol(
    "dragoman",
    (
        *(
            Endpoint(
                f"/health/{name}",
                partial(_health, name=name),
                method="GET",
                is_open=True,
                is_polled=True,
            )
            for name in ("live", "ready")
        ),
        Endpoint("/metrics", _metrics, method="GET", is_polled=True),
        Endpoint("/v1/bundles", _bundles, method="GET"),
        Endpoint("/v1/generate", _generate),
        Endpoint("/v1/attention", _attention),
        *(
            Endpoint(f"/v1/{ability}", partial(_run_encoder, method=method))
            for method, ability in ABILITIES.items()
        ),
    ),
    prefixes=("/",),
    error_body=error_body,
    error_event="error",
)
