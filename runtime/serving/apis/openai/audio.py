"""OpenAI's API: transcriptions and translations of speech."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from dragoman.errors import DragomanError, listed, nearest, shown
from dragoman.settings.generation import GenerationOptions

from ....decoding.results import RejectedError, Result, Segment, subtitles
from ....speech.prompts import language_name
from ....speech.windows import compression_ratio
from ...models import ServedModel
from ...service import Service
from ..bodies import BodyError
from ..http import Events, attributed, opened_form, server_sent_event, started

FLAGS = {"true": True, "1": True, "false": False, "0": False}
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
FIELDS = frozenset(
    {
        *("file", "model", "language", "prompt", "response_format", "temperature"),
        *("timestamp_granularities[]", "timestamp_granularities", "stream", "strict_audio"),
        *("vad", "fallback", "hotwords"),
    }
)


async def transcribe(service: Service, request: Request, *, task: str) -> Response:
    """Answer a request for a transcription or translation."""
    async with opened_form(request, max_fields=32) as form:
        unknown = form.keys() - FIELDS
        if unknown:
            raise BodyError(f"unknown: {listed(unknown)}{nearest(unknown, sorted(FIELDS))}")
        served = attributed(request, service.models.get(_text(form, "model")))
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise BodyError("file: expected an audio file, found none")
        data = await file.read()
    response_format = _text(form, "response_format") or "json"
    if response_format not in FORMATS:
        raise BodyError(
            f"response_format: expected one of {', '.join(FORMATS)}, found {shown(response_format)}"
        )
    _check_supported(form, response_format)
    timed = response_format in ("srt", "vtt", "verbose_json")
    options = service.transcription_options(served, _options(form, served, task, timed=timed))
    if _flag(form, "stream"):
        return Events(await started(_events(service, served, data, options)))
    async with service.opened_audio(served, [data], vad=options.vad) as (audio,):
        (result,) = await service.generate(served, [audio], [options])
        seconds = audio.duration
    if result.error is not None:
        raise RejectedError(result.error)
    response = _response(result, response_format, task, seconds, options)
    for warning in result.warnings:
        response.headers.append("Warning", f'199 dragoman "{warning}"')
    return response


def _check_supported(form: FormData, response_format: str) -> None:
    granularities = _granularities(form)
    if granularities - {"segment", "word"}:
        raise BodyError("timestamp_granularities: expected segment or word")
    if granularities and response_format != "verbose_json":
        raise BodyError("timestamp_granularities: expected response_format verbose_json")
    if _flag(form, "stream") and response_format not in ("json", "text"):
        raise BodyError(f"stream: expected response_format json or text, found {response_format}")


def _granularities(form: FormData) -> set[Any]:
    return {*form.getlist("timestamp_granularities[]"), *form.getlist("timestamp_granularities")}


def _options(form: FormData, served: ServedModel, task: str, *, timed: bool) -> GenerationOptions:
    speech = served.manifest.speech
    if speech is None:
        raise DragomanError(f"{served.name} is not a speech model; choose a speech model")
    values: dict[str, Any] = {"word_timestamps": "word" in _granularities(form)}
    values |= {"timestamps": timed or None, "language": _text(form, "language") or None}
    if task == "translate" or speech.tasks:
        values["task"] = task
    values |= {name: _flag(form, name) for name in ("vad", "fallback")}
    values["strict_audio"] = _flag(form, "strict_audio") or False
    values["initial_prompt"] = _text(form, "prompt") or None
    values["hotwords"] = _text(form, "hotwords") or None
    text = _text(form, "temperature") or "0"
    try:
        temperature = float(text)
    except ValueError as error:
        raise BodyError(f"temperature: expected a number, found {shown(text)}") from error
    if temperature:
        values |= {"do_sample": True, "num_beams": 1, "temperature": temperature, "top_k": 0}
    return GenerationOptions(**values)


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if isinstance(value, UploadFile):
        raise BodyError(f"{name}: expected a string, found a file")
    return value


def _flag(form: FormData, name: str) -> bool | None:
    """Read a truth value, as libraries write it in forms."""
    text = _text(form, name)
    if not text:
        return None
    value = FLAGS.get(text.lower())
    if value is None:
        raise BodyError(f"{name}: expected true or false, found {shown(text)}")
    return value


async def _events(
    service: Service, served: ServedModel, data: bytes, options: GenerationOptions
) -> AsyncGenerator[str, None]:
    text, warnings = "", dict[str, Any]()
    async with (
        service.opened_audio(served, [data], vad=options.vad) as (audio,),
        aclosing(service.transcribe(served, audio, options)) as items,
    ):
        async for item in items:
            if isinstance(item, Segment):
                new = item.text or ""
                new = new if text else new.lstrip()
                text += new
                if new:
                    yield server_sent_event({"type": "transcript.text.delta", "delta": new})
            elif item.error is not None:
                raise RejectedError(item.error)
            else:
                warnings = {"warnings": item.warnings} if item.warnings else {}
    yield server_sent_event({"type": "transcript.text.done", "text": text, **warnings})


def _response(
    result: Result, response_format: str, task: str, seconds: float, options: GenerationOptions
) -> Response:
    text, segments = (result.text or "").strip(), result.segments or ()
    if response_format == "text":
        return PlainTextResponse(text + "\n")
    if response_format == "srt":
        return PlainTextResponse(subtitles(result, "srt"), media_type="application/x-subrip")
    if response_format == "vtt":
        return PlainTextResponse(subtitles(result, "vtt"), media_type="text/vtt")
    warnings = {"warnings": result.warnings} if result.warnings else {}
    if response_format == "json":
        return JSONResponse({"text": text, **warnings})
    language = "en" if task == "translate" and result.language is None else result.language
    words = [
        {"word": word.text.strip(), "start": round(word.start, 3), "end": round(word.end, 3)}
        for segment in segments
        for word in segment.words or ()
    ]
    # Without fallback, segments have no probabilities; each reports that of the whole output.
    mean_log_probability = result.log_probability / max(1, len(result.tokens))
    return JSONResponse(
        {
            "task": task,
            "language": language_name(language or "en"),
            "duration": round(seconds, 3),
            "text": text,
            "segments": [
                {
                    "id": number,
                    "seek": 0,
                    "start": round(segment.start, 3),
                    "end": round(segment.end, 3),
                    "text": segment.text,
                    "tokens": list(segment.tokens),
                    **_quality(segment, options, mean_log_probability),
                }
                for number, segment in enumerate(segments)
            ],
            **({"words": words} if options.word_timestamps else {}),
            **warnings,
        }
    )


def _quality(segment: Segment, options: GenerationOptions, mean: float) -> dict[str, Any]:
    quality = segment.quality
    ratio = compression_ratio(segment.text or "") if quality is None else quality.compression_ratio
    return {
        "temperature": (options.temperature or 0.0) if quality is None else quality.temperature,
        "avg_logprob": mean if quality is None else quality.average_log_probability,
        "compression_ratio": round(ratio, 3),
        "no_speech_prob": None if quality is None else quality.no_speech_probability,
    }
