"""The Open Inference Protocol v2 (KServe) over HTTP, with its binary extension.

Its tensors are those of `open_inference`; generation options are parameters of the request.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from dragoman import __version__

from ...format.head import Head
from ..host import Host
from ..hosts import UnknownModelError
from ..service import Service
from .bodies import BodyError, json_object
from .http import Problem, route
from .open_inference import (
    OF_TRITON,
    decoded_tensors,
    files_of,
    input_of,
    outputs_of,
    read_tensors,
    reading_of,
    texts_of,
)
from .options import generation_options
from .tensors import Tensor, read_tensor, write_tensor

HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"
MOST_MICROSECONDS = (1 << 63) - 1
MOST_DIGITS = 20
"""Of the length of a header."""


def error_body(problem: Problem) -> dict[str, str]:
    return {"error": problem.message}


def routes(service: Service) -> list[BaseRoute]:
    def get(path: str, handler: Callable[..., Any]) -> BaseRoute:
        return route(path, partial(handler, service), error_body, method="GET")

    found = [
        get("/v2", _server),
        get("/v2/health/live", _live),
        get("/v2/health/ready", _ready),
        route("/v2/repository/index", partial(_index, service), error_body),
        route("/v2/repository/models/{model}/load", partial(_load, service), error_body),
        route("/v2/repository/models/{model}/unload", partial(_unload, service), error_body),
    ]
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        found += [
            get(model, _metadata),
            get(f"{model}/ready", _model_ready),
            route(f"{model}/infer", partial(_infer, service), error_body),
        ]
    return found


def _host(service: Service, request: Request) -> Host:
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise UnknownModelError(f"version: expected {VERSION}, found {version!r:.40}")
    return service.hosts.get(request.path_params["model"])


async def _server(service: Service, request: Request) -> Response:
    extensions = ["binary_tensor_data", "model_repository"]
    return JSONResponse({"name": "dragoman", "version": __version__, "extensions": extensions})


async def _live(service: Service, request: Request) -> Response:
    return Response(status_code=200 if all(h.alive for h in service.hosts.all) else 503)


async def _ready(service: Service, request: Request) -> Response:
    return Response(status_code=200 if all(h.alive for h in service.hosts.all) else 503)


async def _model_ready(service: Service, request: Request) -> Response:
    return Response(status_code=200 if _host(service, request).alive else 503)


async def _index(service: Service, request: Request) -> Response:
    states = [
        {"name": h.name, "version": VERSION, "state": "READY" if h.loaded else "UNAVAILABLE"}
        for h in service.hosts.all
    ]
    return JSONResponse(states)


async def _load(service: Service, request: Request) -> Response:
    await _host(service, request).load()
    return Response(status_code=200)


async def _unload(service: Service, request: Request) -> Response:
    _host(service, request).unload()
    return Response(status_code=200)


async def _metadata(service: Service, request: Request) -> Response:
    host = _host(service, request)
    return JSONResponse(
        {
            "name": host.name,
            "versions": [VERSION],
            "platform": f"dragoman_{host.manifest.target}",
            "inputs": [dataclasses.asdict(input_of(host.manifest))],
            "outputs": [dataclasses.asdict(spec) for spec in outputs_of(host.manifest)],
        }
    )


async def _infer(service: Service, request: Request) -> Response:
    host = _host(service, request)
    head, binary = _parts(await request.body(), request.headers.get(HEADER_LENGTH))
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
    names = [spec.name for spec in outputs_of(host.manifest)]
    wanted = _wanted(head.get("outputs"), names, all_binary=all_binary)
    seconds = _seconds(parameters.get("timeout"))
    options = {k: v for k, v in parameters.items() if k not in OF_TRITON}
    model_head = host.manifest.head
    if model_head is not None:
        outputs = await _read_texts(service, host, model_head, tensors, options, seconds)
    else:
        outputs = await _generate(service, host, tensors, options, seconds)
    answer = {"model_name": host.name, "model_version": VERSION}
    if "id" in head:
        answer["id"] = head["id"]
    return _answer(answer, outputs, wanted)


async def _generate(
    service: Service,
    host: Host,
    tensors: dict[str, Tensor],
    parameters: dict[str, Any],
    seconds: float | None,
) -> list[Tensor]:
    options = generation_options(parameters)
    sources: Sequence[Any]
    if host.manifest.audio is not None:
        sources = await service.read_audio(host, *files_of(tensors))
    else:
        sources = texts_of(tensors)
    results = await service.generate(host, sources, [options] * len(sources), seconds=seconds)
    return decoded_tensors(results)


async def _read_texts(
    service: Service,
    host: Host,
    head: Head,
    tensors: dict[str, Tensor],
    parameters: dict[str, Any],
    seconds: float | None,
) -> list[Tensor]:
    method, options = reading_of(head, parameters)
    found = await service.read_texts(host, method, texts_of(tensors), options, seconds=seconds)
    return read_tensors(head, found)


def _parts(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a request, and the binary part behind it."""
    if header_length is None:
        return json_object(body), memoryview(b"")
    wrong = not header_length.isdecimal() or len(header_length) > MOST_DIGITS
    if wrong or int(header_length) > len(body):
        raise BodyError(f"{HEADER_LENGTH}: expected at most {len(body)}, found {header_length:.20}")
    size = int(header_length)
    return json_object(body[:size]), memoryview(body)[size:]


def _seconds(timeout: Any) -> float | None:
    """
    Args:
        timeout: in microseconds, as a request has it; None or 0: as long as the server allows
    """
    if timeout is None:
        return None
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 <= timeout <= MOST_MICROSECONDS:
        raise BodyError(
            f"timeout: expected microseconds, 0 to {MOST_MICROSECONDS}, found {timeout!r:.40}"
        )
    return float(timeout) / 1e6 or None


def _wanted(asked: Any, names: Sequence[str], *, all_binary: bool) -> dict[str, bool]:
    """The names of the outputs that a request gets, and whether each is binary.

    Args:
        asked: the outputs that it names, each with parameters; None, or none of them: all
        names: of all
    """
    if asked is None or asked == []:
        return dict.fromkeys(names, all_binary)
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        raise BodyError("outputs: expected a list of objects")
    wanted: dict[str, bool] = {}
    for one in asked:
        name, parameters = one.get("name"), one.get("parameters") or {}
        if name not in names:
            raise BodyError(f"outputs: expected one of {', '.join(names)}, found {name!r:.80}")
        if name in wanted:
            raise BodyError(f"outputs: expected each name once, found {name} again")
        if not isinstance(parameters, dict):
            raise BodyError(f"outputs: expected parameters of {name}, found {parameters!r:.80}")
        wanted[name] = bool(parameters.get("binary_data", all_binary))
    return wanted


def _answer(head: dict[str, Any], outputs: Sequence[Tensor], wanted: dict[str, bool]) -> Response:
    """
    Args:
        wanted: see `_wanted`
    """
    known = {tensor.name: tensor for tensor in outputs}
    written = [write_tensor(known[name], binary=binary) for name, binary in wanted.items()]
    answer = head | {"outputs": [data for data, _ in written]}
    content = b"".join(part for _, part in written)
    if not any(wanted.values()):
        return JSONResponse(answer)
    text = json.dumps(answer, ensure_ascii=False).encode()
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(text + content, media_type="application/octet-stream", headers=headers)
