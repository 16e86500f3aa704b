"""LibreTranslate's protocol: /translate and /languages."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from dragoman.errors import DragomanError

from ...decoding.options import GenerationOptions
from ...decoding.rejection import RejectedError
from ..host import Host
from ..keys import Keys
from ..service import Service
from .bodies import BodyError, Fields, json_object
from .forms import opened_form
from .http import Problem, route
from .options import MOST_SOURCES

MOST_ALTERNATIVES = 16


def error_body(problem: Problem) -> dict[str, str]:
    return {"error": problem.message}


def routes(service: Service, keys: Keys) -> list[BaseRoute]:
    return [
        route("/translate", partial(_translate, service, keys), error_body),
        route("/languages", partial(_languages, service, keys), error_body, method="GET"),
    ]


async def _translate(service: Service, keys: Keys, request: Request) -> Response:
    values = await _values(request)
    keys.check(request.headers, values.pop("api_key", None))
    fields = Fields(values)
    given = fields.need("q", (str, list))
    source, target = fields.take("source", str, "auto"), fields.need("target", str)
    form, alternatives = (
        fields.take("format", str, "text"),
        fields.take("alternatives", (int, str), 0),
    )
    model = fields.take("model", str)
    fields.end()
    if form != "text":
        raise BodyError(f"format: expected text, found {form!r:.40}")
    if str(alternatives) not in map(str, range(MOST_ALTERNATIVES + 1)):
        raise BodyError(
            f"alternatives: expected 0 to {MOST_ALTERNATIVES}, found {alternatives!r:.40}"
        )
    texts = [given] if isinstance(given, str) else given
    if not all(isinstance(text, str) for text in texts) or len(texts) > MOST_SOURCES:
        raise BodyError(f"q: expected a text, or at most {MOST_SOURCES} of them")
    host = _translator(service, source, target, model)
    options = _options(host, source, target, int(alternatives))
    results = await service.generate(host, texts, [options] * len(texts))
    for result in results:
        if result.error is not None:
            raise RejectedError(result.error)
    translated = [result.text or "" for result in results]
    others = [[h.text or "" for h in result.hypotheses[1:]] for result in results]
    single = isinstance(given, str)
    answer: dict[str, Any] = {"translatedText": translated[0] if single else translated}
    if int(alternatives):
        answer["alternatives"] = others[0] if single else others
    return JSONResponse(answer)


async def _languages(service: Service, keys: Keys, request: Request) -> Response:
    """Every language that a bundle translates from, with those that it translates to. A key may be
    in the body, where the client puts it, although the method is GET.
    """
    form = await _form(request)
    keys.check(request.headers, form.get("api_key"))
    targets: dict[str, set[str]] = {}
    for host in service.hosts.all:
        for source, target in _pairs(host):
            targets.setdefault(source, set()).add(target)
    return JSONResponse(
        [
            {"code": code, "name": code, "targets": sorted(to)}
            for code, to in sorted(targets.items())
        ]
    )


async def _values(request: Request) -> dict[str, Any]:
    """The fields of a body, of JSON or of a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return json_object(await request.body())
    return await _form(request)


async def _form(request: Request) -> dict[str, Any]:
    """The fields of a form; of those that occur several times, a list."""
    async with opened_form(request) as form:
        fields = {name: form.getlist(name) for name in form}
    return {name: found if len(found) > 1 else found[0] for name, found in fields.items()}


def _translates(host: Host) -> bool:
    model = host.manifest.model
    return model.has_encoder and model.has_decoder and host.manifest.audio is None


def _pairs(host: Host) -> list[tuple[str, str]]:
    """Of a bundle that knows its languages; of another one, those that its name ends with, as in
    opus-mt-en-de.
    """
    if not _translates(host):
        return []
    languages = host.manifest.languages
    if languages is not None:
        codes = sorted(languages.tokens)
        return [(source, target) for source in codes for target in codes if source != target]
    parts = host.name.split("-")
    codes = [part for part in parts[-2:] if 2 <= len(part) <= 3 and part.isalpha()]
    return [(codes[0], codes[1])] if len(codes) == 2 else []


def _translator(service: Service, source: str, target: str, model: str | None) -> Host:
    """
    Raises:
        DragomanError: no bundle translates this way.
    """
    if model is not None:
        host = service.hosts.get(model)
        if not _translates(host):  # of a speech model, texts would be paths of the server's files
            raise DragomanError(f"model: expected one that translates, {host.name} does not")
        return host
    candidates = [host for host in service.hosts.all if _translates(host)]
    for host in candidates:
        pairs = _pairs(host)
        if (source, target) in pairs or (source == "auto" and target in {t for _, t in pairs}):
            return host
    known = sorted(f"{s}-{t}" for host in candidates for s, t in _pairs(host))
    raise DragomanError(
        f"expected languages of a bundle ({', '.join(known[:20]) or 'none is known'}), found "
        f"{source!r:.20} and {target!r:.20}"
    )


def _options(host: Host, source: str, target: str, alternatives: int) -> GenerationOptions:
    values: dict[str, Any] = {}
    if host.manifest.languages is not None:
        values["target_language"] = target
        values["source_language"] = None if source == "auto" else source
    if alternatives:
        beams = max(alternatives + 1, host.manifest.generation.num_beams)
        values |= {"num_beams": beams, "num_return_sequences": alternatives + 1}
    return GenerationOptions(**values)
