"""LibreTranslate's API: /translate and /languages."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions

from ...decoding.results import RejectedError
from ..models import ServedModel
from ..service import Service
from .bodies import MOST_SOURCES, BodyError, Fields, json_object, spelled
from .http import Endpoint, Protocol, attributed, opened_form

MOST_ALTERNATIVES = 16
LINE_BREAK = re.compile("(\r\n|[\n\r\v\f\x85\u2028\u2029])")


def error_body(error: DragomanError) -> dict[str, str]:
    """Return the JSON body of an error."""
    return {"error": str(error)}


async def _translate(service: Service, request: Request) -> Response:
    values = await _body_fields(request)
    service.api_keys.check(request.headers, values.pop("api_key", None))
    fields = Fields(values)
    query = fields.require("q", (str, list))
    source, target = fields.take("source", str, "auto"), fields.require("target", str)
    text_format = fields.take("format", str, "text")
    alternatives = fields.take("alternatives", (int, str), 0)
    model = fields.take("model", str)
    fields.end()
    if text_format != "text":
        raise BodyError(f"format: expected text, found {shown(text_format)}")
    if str(alternatives) not in map(str, range(MOST_ALTERNATIVES + 1)):
        raise BodyError(
            f"alternatives: expected 0 to {MOST_ALTERNATIVES}, found {shown(alternatives)}"
        )
    texts = [query] if isinstance(query, str) else query
    if not all(isinstance(text, str) for text in texts) or len(texts) > MOST_SOURCES:
        raise BodyError(f"q: expected a string, or at most {MOST_SOURCES} strings")
    served = attributed(request, _translator(service, source, target, model))
    with spelled({"source_language": "source", "target_language": "target"}):
        options = _options(served, source, target, int(alternatives))
        lines = _lines(texts)
        results = await service.generate(served, lines, [options] * len(lines))
    for result in results:
        if result.error is not None:
            raise RejectedError(result.error)
    translations = [[h.text or "" for h in result.hypotheses] or [""] for result in results]
    outputs = _with_breaks(texts, dict(zip(lines, translations, strict=True)))
    is_single = isinstance(query, str)
    translated = [output[0] for output in outputs]
    answer: dict[str, Any] = {"translatedText": translated[0] if is_single else translated}
    if int(alternatives):
        others = [output[1:] for output in outputs]
        answer["alternatives"] = others[0] if is_single else others
    return JSONResponse(answer)


def _lines(texts: Sequence[str]) -> list[str]:
    """Return the lines of texts that have words, each once.

    Raises:
        BodyError: there are too many.
    """
    lines = [line for text in texts for line in LINE_BREAK.split(text)[::2] if line.strip()]
    if len(lines) > MOST_SOURCES:
        raise BodyError(f"q: expected at most {MOST_SOURCES} lines, found {len(lines)}")
    return list(dict.fromkeys(lines))


def _with_breaks(texts: Sequence[str], found: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return translations of texts with the line breaks and blank lines of the texts.

    Args:
        found: translations of each line, the best first

    Returns:
        as many translations of each text as of all its lines
    """
    outputs = []
    for text in texts:
        parts = LINE_BREAK.split(text)
        count = min((len(found[part]) for part in parts[::2] if part in found), default=1)
        outputs.append(
            [
                "".join(
                    " ".join(LINE_BREAK.split(found[part][rank])[::2]) if part in found else part
                    for part in parts
                )
                for rank in range(count)
            ]
        )
    return outputs


async def _languages(service: Service, request: Request) -> Response:
    """List the source languages with their target languages.

    `libretranslatepy` sends a key in the body, although the method is GET.
    """
    form = await _form_fields(request)
    service.api_keys.check(request.headers, form.get("api_key"))
    targets: dict[str, set[str]] = {}
    for served in service.models.all:
        for source, target in _language_pairs(served):
            targets.setdefault(source, set()).add(target)
    return JSONResponse(
        [
            {"code": code, "name": code, "targets": sorted(to)}
            for code, to in sorted(targets.items())
        ]
    )


async def _body_fields(request: Request) -> dict[str, Any]:
    """Read a body, which is a form or JSON, whatever type `curl -d` gives it."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if media_type.endswith("json") or body.lstrip().startswith((b"{", BOM_UTF8)):
        return json_object(body)
    return await _form_fields(request)


async def _form_fields(request: Request) -> dict[str, Any]:
    """Read a form. A field that occurs several times is a list."""
    async with opened_form(request) as form:
        fields = {name: form.getlist(name) for name in form}
    return {name: found if len(found) > 1 else found[0] for name, found in fields.items()}


def _translates(served: ServedModel) -> bool:
    model = served.manifest.model
    return model.has_encoder and model.has_decoder and served.manifest.audio is None


def _language_pairs(served: ServedModel) -> list[tuple[str, str]]:
    """Return the (source, target) pairs of a bundle, from its languages or else its name.

    opus-mt-en-de is such a name.
    """
    if not _translates(served):
        return []
    languages = served.manifest.languages
    if languages is not None:
        codes = sorted(languages.tokens)
        return [(source, target) for source in codes for target in codes if source != target]
    parts = served.name.split("-")
    codes = [part for part in parts[-2:] if 2 <= len(part) <= 3 and part.isalpha()]
    return [(codes[0], codes[1])] if len(codes) == 2 else []


def _translator(service: Service, source: str, target: str, model: str | None) -> ServedModel:
    """Find a model that translates from one language to another.

    Raises:
        DragomanError: there is no such model.
    """
    if model is not None:
        served = service.models.get(model)
        if not _translates(served):  # a speech model would read texts as file paths
            raise DragomanError(f"model: expected a translation model, {served.name} is another")
        return served
    candidates = [served for served in service.models.all if _translates(served)]
    for served in candidates:
        pairs = _language_pairs(served)
        if (source, target) in pairs or (source == "auto" and target in {t for _, t in pairs}):
            return served
    known = sorted(f"{s}-{t}" for served in candidates for s, t in _language_pairs(served))
    raise DragomanError(
        f"expected languages of a bundle ({', '.join(known[:20]) or 'none is known'}), found "
        f"{shown(source)} and {shown(target)}"
    )


def _options(served: ServedModel, source: str, target: str, alternatives: int) -> GenerationOptions:
    values: dict[str, Any] = {}
    if served.manifest.languages is not None:
        values["target_language"] = target
        values["source_language"] = None if source == "auto" else source
    if alternatives:
        beams = max(alternatives + 1, served.manifest.generation.num_beams)
        values |= {"num_beams": beams, "num_return_sequences": alternatives + 1}
    return GenerationOptions(**values)


PROTOCOL = Protocol(
    "libretranslate",
    (
        # The handlers check the key, which may be in the body.
        Endpoint("/translate", _translate, is_open=True),
        Endpoint("/languages", _languages, method="GET", is_open=True),
    ),
    prefixes=("/translate", "/languages"),
    error_body=error_body,
)
