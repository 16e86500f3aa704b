"""LibreTranslate's API: /translate, /detect and /languages."""

from __future__ import annotations

import asyncio
import re
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError, listed, shown
from dragoman.settings.generation import GenerationOptions

from ...arguments import stop_check
from ...decoding.results import RejectedError, Result
from ...documents import (
    Document,
    aligned_by_number,
    pairs_to_align,
    read_document,
    reading_of,
    warnings_of,
)
from ...format.texts import languages_of_name
from ...texts.sentences import base_language, check_split, language_of, splitter_is_installed
from ...texts.tag_places import WordPairs
from ..models import ServedModel
from ..service import Service
from .bodies import MOST_SOURCES, BodyError, Fields, json_object, spelled
from .http import Endpoint, Protocol, attributed, error_message, opened_form

MOST_ALTERNATIVES = 16
MOST_HTML = 4_000_000
"""The most characters of HTML in a request."""
DETECTOR = "py3langid"
"""The package that detects languages."""
DETECTED_CHARACTERS = 20_000
"""The most characters of a request that its language is detected from."""
OTHER_LABELS = {"nb": "no", "fil": "tl"}
"""What the detector calls languages that have another code there."""
Translation = tuple[list[str], Sequence[str]]
"""The outputs of a text, best first, and what to tell the user about them."""
LINE_BREAK = re.compile("(\r\n|[\n\r\v\f\x85\u2028\u2029])")


async def _translate(service: Service, request: Request) -> Response:
    fields = await _body_fields(service, request)
    query = fields.require("q", (str, list))
    source, target = fields.take("source", str, "auto"), fields.require("target", str)
    text_format = fields.take("format", str, "text")
    alternatives = fields.take("alternatives", (int, str), 0)
    model = fields.take("model", str)
    fields.end()
    if text_format not in ("text", "html"):
        raise BodyError(f"format: expected text or html, found {shown(text_format)}")
    if str(alternatives) not in map(str, range(MOST_ALTERNATIVES + 1)):
        raise BodyError(
            f"alternatives: expected 0 to {MOST_ALTERNATIVES}, found {shown(alternatives)}"
        )
    texts = [query] if isinstance(query, str) else query
    if not all(isinstance(text, str) for text in texts) or len(texts) > MOST_SOURCES:
        raise BodyError(f"q: expected a string, or at most {MOST_SOURCES} strings")
    detected = None
    if source == "auto":
        source, detected = await _detected_source(service, texts, target, model)
    served = attributed(request, _translator(service, source, target, model))
    with spelled({"source_language": "source", "target_language": "target"}):
        options = _options(served, source, target, int(alternatives))
        if text_format == "html":
            translations = await _translated_html(service, served, texts, options, source)
        elif splitter_is_installed():
            translations = await _generated(service, served, texts, _split(options, source))
        else:
            lines = _lines(texts)
            each = await _generated(service, served, lines, options)
            found = {line: outputs for line, (outputs, _) in zip(lines, each, strict=True)}
            translations = [(outputs, []) for outputs in _with_breaks(texts, found)]
    answer: dict[str, list[Any]] = {"translatedText": [outputs[0] for outputs, _ in translations]}
    if int(alternatives):
        answer["alternatives"] = [outputs[1:] for outputs, _ in translations]
    warnings = [lines for _, lines in translations]
    if any(warnings):
        answer["warnings"] = warnings
    if detected is not None:
        answer["detectedLanguage"] = [detected] * len(texts)
    if isinstance(query, str):
        return JSONResponse({name: values[0] for name, values in answer.items()})
    return JSONResponse(answer)


async def _detect(service: Service, request: Request) -> Response:
    """List the languages that a text may be in, the most probable one first."""
    fields = await _body_fields(service, request)
    query = fields.require("q", str)
    fields.end()
    codes = {source for served in service.models.all for source, _ in _language_pairs(served)}
    return JSONResponse(await asyncio.to_thread(detected_languages, [query], codes))


async def _detected_source(
    service: Service, texts: Sequence[str], target: str, model: str | None
) -> tuple[str, dict[str, Any] | None]:
    """Return the source language of texts, and what `/translate` says about it."""
    models = service.models.all if model is None else [_named(service, model)]
    pairs = [pair for served in models for pair in _language_pairs(served)]
    codes = {source for source, to in pairs if to == target}
    if not codes or (len(codes) == 1 and find_spec(DETECTOR) is None):
        return (*codes, "auto")[0], None
    (best, *_) = await asyncio.to_thread(detected_languages, texts, codes)
    return best["language"], best


def detected_languages(texts: Sequence[str], codes: Iterable[str]) -> list[dict[str, Any]]:
    """Detect the language of texts among those that models name with `codes`.

    Returns:
        languages with confidences of at least one percent, best first
    """
    for package in (DETECTOR, "langcodes"):
        if find_spec(package) is None:
            raise DragomanError(
                f"detection of languages: expected the package {package}, found none: pip install "
                "'dragoman[detect]'"
            )
    identifier = _identifier()
    known = set(identifier.labels)
    labels: dict[str, str] = {}
    for code in sorted(codes, reverse=True):
        language = base_language(code) or ""
        label = OTHER_LABELS.get(language, language)
        labels |= {label: code} if label in known else {}
    if not labels:
        raise DragomanError(
            f"detection of languages: expected a language that py3langid knows, found "
            f"{listed(codes) or 'no source language'}"
        )
    among = copy(identifier)
    among.set_languages(labels)
    beginning = " ".join(text[:DETECTED_CHARACTERS] for text in texts)[:DETECTED_CHARACTERS]
    found = [
        {"confidence": float(round(100 * share)), "language": labels[label]}
        for label, share in among.rank(beginning)
    ]
    return [one for one in found if one["confidence"]] or found[:1]


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _split(options: GenerationOptions, source: str) -> GenerationOptions:
    is_known = source != "auto" and base_language(source) is not None
    return options.replace(split=True, split_language=source if is_known else None)


async def _generated(
    service: Service, served: ServedModel, texts: Sequence[str], options: GenerationOptions
) -> list[Translation]:
    results = await service.generate(served, texts, [options] * len(texts))
    _check_results(results)
    return [
        ([h.text or "" for h in result.hypotheses] or [result.text or ""], result.warnings)
        for result in results
    ]


async def _translated_html(
    service: Service,
    served: ServedModel,
    texts: Sequence[str],
    options: GenerationOptions,
    source: str,
) -> list[Translation]:
    """Translate HTML; see `documents.translate_document`."""
    size = sum(map(len, texts))
    if size > MOST_HTML:
        raise BodyError(f"q: expected at most {MOST_HTML:,} characters of HTML, found {size:,}")
    check_split(options.replace(split=True), served.manifest)
    options = _split(options, source)
    language = language_of(options, served.manifest)
    seconds = service.options.timeout
    end, check = time.monotonic() + seconds, stop_check(seconds)
    read = partial(read_document, form="html", language=language, check=check)
    documents = await asyncio.to_thread(lambda: [read(text) for text in texts])
    sentences = [sentence for document in documents for sentence in document.sentences]
    if len(sentences) > MOST_SOURCES:
        raise BodyError(f"q: expected at most {MOST_SOURCES} sentences, found {len(sentences)}")
    each = list(dict.fromkeys(sentences))
    results = await service.generate(
        served, each, [options] * len(each), seconds=max(end - time.monotonic(), 1e-3)
    )
    _check_results(results)
    of_sentence = dict(zip(each, results, strict=True))

    async def with_tags(document: Document, own: Sequence[Result], rank: int) -> str:
        check()
        pairs = pairs_to_align(document, own, served.manifest, rank)
        found: dict[int, WordPairs] = {}
        if pairs:
            reading, left = vars(reading_of(options)), max(end - time.monotonic(), 1e-3)
            alignments = await service.run_with_model(
                served,
                lambda model: model.align(list(pairs.values()), timeout=left, **reading),
                seconds=left,
            )
            found = aligned_by_number(pairs, alignments)
        best = [result.hypotheses[rank].text or "" if result.hypotheses else "" for result in own]
        return await asyncio.to_thread(document.translated, best, found, check)

    translations = list[Translation]()
    for document in documents:
        own = [of_sentence[sentence] for sentence in document.sentences]
        count = min((len(result.hypotheses) or 1 for result in own), default=1)
        outputs = [await with_tags(document, own, rank) for rank in range(count)]
        translations.append((outputs, warnings_of(document, own, served.manifest)))
    return translations


def _check_results(results: Sequence[Result]) -> None:
    for result in results:
        if result.error is not None:
            raise RejectedError(result.error)


def _lines(texts: Sequence[str]) -> list[str]:
    lines = [line for text in texts for line in LINE_BREAK.split(text)[::2] if line.strip()]
    if len(lines) > MOST_SOURCES:
        raise BodyError(f"q: expected at most {MOST_SOURCES} lines, found {len(lines)}")
    return list(dict.fromkeys(lines))


def _with_breaks(texts: Sequence[str], found: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return translations with the line breaks of the texts, as many as of all lines of a text."""
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
    """List the languages; `libretranslatepy` sends a key in the body of this GET."""
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


async def _body_fields(service: Service, request: Request) -> Fields:
    """Read a form or JSON, whatever type `curl -d` gives it, and check its key."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    is_json = media_type.endswith("json") or body.lstrip().startswith((b"{", BOM_UTF8))
    values = json_object(body) if is_json else await _form_fields(request)
    service.api_keys.check(request.headers, values.pop("api_key", None))
    return Fields(values)


async def _form_fields(request: Request) -> dict[str, Any]:
    """Read a form; a repeated field is a list."""
    async with opened_form(request) as form:
        fields = {name: form.getlist(name) for name in form}
    return {name: found if len(found) > 1 else found[0] for name, found in fields.items()}


def _translates(served: ServedModel) -> bool:
    model = served.manifest.model
    return model.has_encoder and model.has_decoder and served.manifest.audio is None


def _language_pairs(served: ServedModel) -> list[tuple[str, str]]:
    """Return the (source, target) pairs of a bundle, or else of its name, such as opus-mt-en-de."""
    if not _translates(served):
        return []
    languages = served.manifest.languages
    if languages is not None:
        codes = sorted(languages.tokens)
        return [(source, target) for source in codes for target in codes if source != target]
    named = languages_of_name(served.name)
    return [named] if named else []


def _named(service: Service, name: str) -> ServedModel:
    served = service.models.get(name)
    if not _translates(served):  # a speech model would read texts as file paths
        raise DragomanError(f"model: expected a translation model, {served.name} is another")
    return served


def _translator(service: Service, source: str, target: str, model: str | None) -> ServedModel:
    if model is not None:
        return _named(service, model)
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
        Endpoint("/detect", _detect, is_open=True),
        Endpoint("/languages", _languages, method="GET", is_open=True),
    ),
    prefixes=("/translate", "/detect", "/languages"),
    error_body=error_message,
)
