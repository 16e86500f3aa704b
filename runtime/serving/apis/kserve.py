"""The Open Inference Protocol v2 (KServe) over HTTP, with binary data; see `open_inference`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman import __version__
from dragoman.errors import shown

from ...decoding.results import Result
from ..models import ServedModel, UnknownModelError
from ..service import Service
from .bodies import BodyError, generation_options, json_object
from .http import Endpoint, Protocol, attributed, error_message
from .open_inference import (
    PROTOCOL_PARAMETERS,
    Tensor,
    decoder_tensors,
    encoder_call,
    encoder_tensors,
    files_of,
    input_spec,
    output_specs,
    read_tensor,
    texts_of,
    write_tensor,
)

HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"
MOST_MICROSECONDS = (1 << 63) - 1
MOST_DIGITS = 20
"""The most digits of `HEADER_LENGTH`."""


def _model(service: Service, request: Request) -> ServedModel:
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise UnknownModelError(f"version: expected {VERSION}, found {shown(version)}")
    return attributed(request, service.models.get(request.path_params["model"]))


async def _server(service: Service, request: Request) -> Response:
    extensions = ["binary_tensor_data", "model_repository"]
    return JSONResponse({"name": "dragoman", "version": __version__, "extensions": extensions})


async def _health(service: Service, request: Request) -> Response:
    return Response(status_code=200 if service.models.alive else 503)


async def _model_health(service: Service, request: Request) -> Response:
    return Response(status_code=200 if _model(service, request).alive else 503)


async def _index(service: Service, request: Request) -> Response:
    states = {True: "READY", False: "UNAVAILABLE"}
    return JSONResponse(
        [
            {"name": served.name, "version": VERSION, "state": states[served.loaded]}
            for served in service.models.all
        ]
    )


async def _load(service: Service, request: Request) -> Response:
    await _model(service, request).load()
    return Response()


async def _unload(service: Service, request: Request) -> Response:
    _model(service, request).unload()
    return Response()


async def _metadata(service: Service, request: Request) -> Response:
    served = _model(service, request)
    return JSONResponse(
        {
            "name": served.name,
            "versions": [VERSION],
            "platform": f"dragoman_{served.manifest.target}",
            "inputs": [dataclasses.asdict(input_spec(served.manifest))],
            "outputs": [dataclasses.asdict(spec) for spec in output_specs(served.manifest)],
        }
    )


async def _infer(service: Service, request: Request) -> Response:
    served = _model(service, request)
    head, binary = _split_body(await request.body(), request.headers.get(HEADER_LENGTH))
    tensors: dict[str, Tensor] = {}
    inputs = head.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(one, dict) for one in inputs):
        raise BodyError("inputs: expected a list of tensors")
    for one in inputs:
        tensor, binary = read_tensor(one, binary)
        tensors[tensor.name] = tensor
    parameters = head.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BodyError("parameters: expected an object")
    all_binary = bool(parameters.pop("binary_data_output", False))
    names = [spec.name for spec in output_specs(served.manifest)]
    requested = _requested_outputs(head.get("outputs"), names, all_binary=all_binary)
    seconds = _seconds(parameters.get("timeout"))
    options = {k: value for k, value in parameters.items() if k not in PROTOCOL_PARAMETERS}
    answer: dict[str, Any] = {"model_name": served.name, "model_version": VERSION}
    model_head = served.manifest.head
    if model_head is not None:
        method, options = encoder_call(model_head, options)
        texts = texts_of(tensors)
        encoded = await service.run_encoder(served, method, texts, options, seconds=seconds)
        outputs = encoder_tensors(model_head, encoded)
    else:
        results = await _generate(service, served, tensors, options, seconds)
        outputs = decoder_tensors(results)
        warnings = [f"{n}: {line}" for n, r in enumerate(results) for line in r.warnings]
        if warnings:
            answer["parameters"] = {"warnings": "; ".join(warnings)}
    if "id" in head:
        answer["id"] = head["id"]
    return _response(answer, outputs, requested)


async def _generate(
    service: Service,
    served: ServedModel,
    tensors: dict[str, Tensor],
    parameters: dict[str, Any],
    seconds: float | None,
) -> list[Result]:
    options = generation_options(parameters)
    if served.manifest.audio is None:
        texts = texts_of(tensors)
        return await service.generate(served, texts, [options] * len(texts), seconds=seconds)
    options = service.transcription_options(served, options)
    files, cut = files_of(tensors), options.cut_at_silence
    async with service.opened_audio(served, files, vad=options.vad, cut=cut) as audio:
        return await service.generate(served, audio, [options] * len(audio), seconds=seconds)


def _split_body(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    if header_length is None:
        return json_object(body), memoryview(b"")
    wrong = not header_length.isdecimal() or len(header_length) > MOST_DIGITS
    if wrong or int(header_length) > len(body):
        raise BodyError(
            f"{HEADER_LENGTH}: expected at most {len(body)}, found {shown(header_length)}"
        )
    size = int(header_length)
    return json_object(body[:size]), memoryview(body)[size:]


def _seconds(timeout: Any) -> float | None:
    """Convert microseconds to seconds; None or 0: the server's timeout."""
    if timeout is None:
        return None
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 <= timeout <= MOST_MICROSECONDS:
        raise BodyError(
            f"timeout: expected microseconds, 0 to {MOST_MICROSECONDS}, found {shown(timeout)}"
        )
    return float(timeout) / 1e6 or None


def _requested_outputs(outputs: Any, names: Sequence[str], *, all_binary: bool) -> dict[str, bool]:
    if outputs is None or outputs == []:
        return dict.fromkeys(names, all_binary)
    if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
        raise BodyError("outputs: expected a list of objects")
    requested: dict[str, bool] = {}
    for one in outputs:
        name, parameters = one.get("name"), one.get("parameters") or {}
        if name not in names:
            raise BodyError(f"outputs: expected one of {', '.join(names)}, found {shown(name)}")
        if name in requested:
            raise BodyError(f"outputs: expected each name once, found {name} again")
        if not isinstance(parameters, dict):
            raise BodyError(f"outputs: expected parameters of {name}, found {shown(parameters)}")
        requested[name] = bool(parameters.get("binary_data", all_binary))
    return requested


def _response(
    head: dict[str, Any], outputs: Sequence[Tensor], requested: dict[str, bool]
) -> Response:
    by_name = {tensor.name: tensor for tensor in outputs}
    written = [write_tensor(by_name[name], binary=binary) for name, binary in requested.items()]
    answer = head | {"outputs": [data for data, _ in written]}
    content = b"".join(part for _, part in written)
    if not any(requested.values()):
        return JSONResponse(answer)
    text = json.dumps(answer, ensure_ascii=False).encode()
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(text + content, media_type="application/octet-stream", headers=headers)


MODEL_PATHS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
PROTOCOL = Protocol(
    "kserve",
    (
        Endpoint("/v2", _server, method="GET"),
        Endpoint("/v2/health/live", _health, method="GET", is_open=True, is_polled=True),
        Endpoint("/v2/health/ready", _health, method="GET", is_open=True, is_polled=True),
        Endpoint("/v2/repository/index", _index),
        Endpoint("/v2/repository/models/{model}/load", _load),
        Endpoint("/v2/repository/models/{model}/unload", _unload),
        *(Endpoint(path, _metadata, method="GET") for path in MODEL_PATHS),
        *(Endpoint(f"{path}/ready", _model_health, method="GET") for path in MODEL_PATHS),
        *(Endpoint(f"{path}/infer", _infer) for path in MODEL_PATHS),
    ),
    prefixes=("/v2",),
    error_body=error_message,
)
