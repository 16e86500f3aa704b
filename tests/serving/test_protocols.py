"""Errors know their statuses, and protocols their open paths and the form of their errors."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncGenerator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dragoman.errors import DragomanError
from dragoman.runtime import BundleError
from dragoman.runtime.arguments import DeadlineError
from dragoman.runtime.backends.interface import BackendError, DeviceLostError
from dragoman.runtime.decoding.results import RejectedError, UnfinishedError
from dragoman.runtime.serving.apis import native, openai
from dragoman.runtime.serving.apis.bodies import BodyError
from dragoman.runtime.serving.apis.http import (
    BodyTooLargeError,
    BodyTooSlowError,
    Endpoint,
    Events,
    Protocol,
    reported_error,
)
from dragoman.runtime.serving.apis.open_inference import TensorError
from dragoman.runtime.serving.app import PROTOCOLS
from dragoman.runtime.serving.clients import UnauthorizedError
from dragoman.runtime.serving.engine.request_queue import ClosedError, OverloadedError
from dragoman.runtime.serving.models import UnavailableError, UnknownModelError

INVALID = (400, "invalid_request")
ERRORS: list[tuple[DragomanError, tuple[int, str], dict[str, str]]] = [
    *((kind("why"), INVALID, {}) for kind in (DragomanError, BodyError, TensorError)),
    (RejectedError("why"), INVALID, {}),
    (BundleError("bundle", ["why"]), INVALID, {}),
    (UnauthorizedError("why"), (401, "unauthorized"), {"WWW-Authenticate": "Bearer"}),
    (UnknownModelError("why"), (404, "unknown_model"), {}),
    (BodyTooSlowError("why"), (408, "too_slow"), {"Connection": "close"}),
    (BodyTooLargeError("why"), (413, "too_large"), {"Connection": "close"}),
    (OverloadedError("why", 2.6), (429, "overloaded"), {"Retry-After": "3"}),
    (BackendError("why"), (500, "backend_error"), {}),
    (DeviceLostError("why"), (503, "backend_error"), {}),
    (ClosedError("why"), (503, "shutting_down"), {"Retry-After": "1"}),
    (UnavailableError("why"), (503, "unavailable"), {}),
    (DeadlineError("why"), (504, "timeout"), {}),
]


@pytest.mark.parametrize(
    ("error", "expected", "headers"), ERRORS, ids=[type(error).__name__ for error, *_ in ERRORS]
)
def test_an_error_has_a_status_a_code_and_headers(
    error: DragomanError, expected: tuple[int, str], headers: dict[str, str]
) -> None:
    assert reported_error(error) is error
    assert (error.status, error.code) == expected
    assert dict(error.headers) == headers


def test_what_a_client_is_told_of_a_defect() -> None:
    error = reported_error(KeyError("secret"))
    assert (error.status, error.code) == (500, "internal_error")
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (400, "invalid_request")]
)
def test_errors_of_starlette_have_codes(status: int, code: str) -> None:
    error = reported_error(HTTPException(status, "why", {"Allow": "GET"}))
    assert (error.status, error.code, str(error)) == (status, code, "why")
    assert dict(error.headers) == {"Allow": "GET"}


def test_a_lost_device_is_one_however_it_is_found() -> None:
    assert issubclass(UnfinishedError, DeviceLostError)


def test_open_paths() -> None:
    found = {e.path for p in PROTOCOLS for e in p.endpoints if e.is_open}
    health = {"/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"}
    assert found == {*health, "/translate", "/detect", "/languages"}


def test_each_path_begins_with_a_prefix_of_its_protocol() -> None:
    for protocol in PROTOCOLS:
        for endpoint in protocol.endpoints:
            if endpoint.path == "/":  # as a prefix, it would be that of all paths
                continue
            first = next(one for one in PROTOCOLS if endpoint.path.startswith(one.prefixes))
            assert first is protocol, endpoint.path


def test_errors_need_no_http_library() -> None:
    code = "import json, sys; import dragoman.errors; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not set(json.loads(done.stdout)) & {"starlette", "uvicorn", "http", "http.client"}


@pytest.mark.parametrize(
    ("protocol", "last"),
    [
        (native.PROTOCOL, 'event: error\ndata: {"error": "too late", "code": "timeout"}\n\n'),
        (
            openai.PROTOCOL,
            'data: {"error": {"message": "too late", "type": "server_error", "param": null, '
            '"code": "timeout"}}\n\n',
        ),
    ],
    ids=["native", "openai"],
)
def test_a_stream_that_fails_ends_with_an_error_in_the_form_of_its_protocol(
    protocol: Protocol, last: str
) -> None:
    closed = []

    async def events() -> AsyncGenerator[str, None]:
        try:
            yield "data: 1\n\n"
            raise DeadlineError("too late")
        finally:
            closed.append(True)

    async def handler(service: None, request: Request) -> Response:
        return Events(events())

    endpoint = Endpoint("/stream", handler, method="GET")
    app = Starlette(routes=dataclasses.replace(protocol, endpoints=(endpoint,)).routes(None))

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/stream")

    answer = asyncio.run(main())
    assert answer.status_code == 200
    assert answer.text == f"data: 1\n\n{last}"
    assert closed
