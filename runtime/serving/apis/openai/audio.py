"""OpenAI's protocol for speech: transcriptions and translations."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute

from dragoman.errors import DragomanError

from ....decoding.options import GenerationOptions
from ....decoding.rejection import RejectedError
from ....decoding.results import Result
from ....speech.language_names import language_name
from ...host import Host
from ...service import Service
from ..bodies import BodyError
from ..forms import opened_form
from ..http import route
from .errors import error_body
from .subtitles import srt, vtt

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
FIELDS = frozenset(
    {
        *("file", "model", "language", "prompt", "response_format", "temperature"),
        *("timestamp_granularities[]", "timestamp_granularities", "stream"),
    }
)


def routes(service: Service) -> list[BaseRoute]:
    return [
        route(f"/v1/audio/{what}", partial(_transcribe, service, task), error_body)
        for what, task in (("transcriptions", "transcribe"), ("translations", "translate"))
    ]


async def _transcribe(service: Service, task: str, request: Request) -> Response:
    async with opened_form(request, max_fields=32) as form:
        unknown = sorted(form.keys() - FIELDS)
        if unknown:
            raise BodyError(f"unknown: {', '.join(unknown):.200}")
        host = service.hosts.get(_text(form, "model"))
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise BodyError("file: expected an audio file, found none")
        data = await file.read()
    response_format = _text(form, "response_format") or "json"
    if response_format not in FORMATS:
        raise BodyError(
            f"response_format: expected one of {', '.join(FORMATS)}, found {response_format!r:.40}"
        )
    _refuse_unsupported(form, response_format)
    (samples,) = await service.read_audio(host, data)
    timed = response_format in ("srt", "vtt", "verbose_json")
    options = _options(form, host, task, timed=timed)
    (result,) = await service.generate(host, [samples], [options])
    if result.error is not None:
        raise RejectedError(result.error)
    seconds = len(samples) / host.manifest.audio.sampling_rate if host.manifest.audio else 0.0
    heat = options.temperature or 0.0
    return _answer(result, response_format, task, seconds, heat)


def _refuse_unsupported(form: FormData, response_format: str) -> None:
    granularities = {
        *form.getlist("timestamp_granularities[]"),
        *form.getlist("timestamp_granularities"),
    }
    if granularities - {"segment", "word"}:
        raise BodyError("timestamp_granularities: expected segment")
    if "word" in granularities:
        raise BodyError("timestamp_granularities: expected segment; times of words are not known")
    if granularities and response_format != "verbose_json":
        raise BodyError("timestamp_granularities: expected response_format verbose_json")
    if _text(form, "stream") in ("true", "True", "1"):
        raise BodyError("stream: expected false: use /v1/generate to stream")
    if _text(form, "prompt"):
        raise BodyError("prompt: expected none, texts before the audio are not supported")


def _options(form: FormData, host: Host, task: str, *, timed: bool) -> GenerationOptions:
    """
    Raises:
        DragomanError: a value is out of range, or the model does not do what is asked.
    """
    speech = host.manifest.speech
    if speech is None:
        raise DragomanError(f"{host.name} is no speech model")
    values: dict[str, Any] = {"timestamps": timed, "language": _text(form, "language") or None}
    if task == "translate" or speech.tasks:
        values["task"] = task
    temperature = _text(form, "temperature") or "0"
    try:
        heat = float(temperature)
    except ValueError as error:
        raise BodyError(f"temperature: expected a number, found {temperature!r:.40}") from error
    if heat:
        values |= {"do_sample": True, "num_beams": 1, "temperature": heat, "top_k": 0}
    return GenerationOptions(**values)


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if isinstance(value, UploadFile):
        raise BodyError(f"{name}: expected a text, found a file")
    return value


def _answer(
    result: Result, response_format: str, task: str, seconds: float, temperature: float
) -> Response:
    text, segments = (result.text or "").strip(), result.segments or ()
    if response_format == "text":
        return PlainTextResponse(text + "\n")
    if response_format == "srt":
        return PlainTextResponse(srt(segments), media_type="application/x-subrip")
    if response_format == "vtt":
        return PlainTextResponse(vtt(segments), media_type="text/vtt")
    if response_format == "json":
        return JSONResponse({"text": text})
    spoken = "en" if task == "translate" and result.language is None else result.language
    return JSONResponse(
        {
            "task": task,
            "language": language_name(spoken or "en"),
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
                    "temperature": temperature,
                    "avg_logprob": _mean(result),
                    "compression_ratio": _compression(segment.text or ""),
                    "no_speech_prob": None,
                }
                for number, segment in enumerate(segments)
            ],
        }
    )


def _compression(text: str) -> float:
    """How much shorter a text is when compressed, by which repetitions show (Radford et al. 2022,
    section 4.5).
    """
    data = text.encode()
    return round(len(data) / len(zlib.compress(data)), 3)


def _mean(result: Result) -> float:
    """Of the whole output: segments have no probabilities of their own."""
    return result.log_probability / max(1, len(result.tokens))
