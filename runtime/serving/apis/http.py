"""What all protocols share: bodies, errors, clients that go away, streams of events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError

from ...backends.errors import BackendError, DeviceLostError
from ..engine.line import ClosedError, OverloadedError
from ..engine.ticket import DeadlineError
from ..host import UnavailableError
from ..hosts import UnknownModelError

logger = logging.getLogger("dragoman.serving")

Outcome = TypeVar("Outcome")
Handler = Callable[[Request], Awaitable[Response]]
ErrorBody = Callable[["Problem"], Any]
"""A problem as a protocol writes it."""

BODY_SECONDS = 120.0
"""That a client has to send the body of its request."""
READING_SECONDS = 60.0
"""That a client has to read what it was sent of a stream."""

ROUTE = "dragoman.route"
"""In the scope of a request: the path of its route."""
REQUEST_ID = "dragoman.request_id"
"""Likewise: what the log calls it."""
BROKEN = "dragoman.broken"
"""Likewise: what became of a stream that began well, as a status of HTTP."""


@dataclass(frozen=True)
class Problem:
    """Why there is no answer.

    Attributes:
        status: of HTTP
        code: for programs
        message: for people
    """

    status: int
    code: str
    message: str
    headers: Mapping[str, str]


class FailedStreamError(Exception):
    """A stream ends with an event that says what went wrong."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class GoneError(Exception):
    """The client went away."""


def problem_of(error: Exception) -> Problem:
    """What a client is told of an error; of a defect, nothing but that there was one."""
    message = str(error)
    if isinstance(error, OverloadedError):
        seconds = str(round(error.retry_after))
        return Problem(429, "overloaded", message, {"Retry-After": seconds})
    if isinstance(error, ClosedError):
        return Problem(503, "shutting_down", message, {"Retry-After": "1"})
    if isinstance(error, DeadlineError):
        return Problem(504, "timeout", message, {})
    if isinstance(error, UnknownModelError):
        return Problem(404, "unknown_model", message, {})
    if isinstance(error, UnavailableError):
        return Problem(503, "unavailable", message, {})
    if isinstance(error, BackendError | DeviceLostError):
        return Problem(500, "backend_error", message, {})
    if isinstance(error, DragomanError):
        return Problem(400, "invalid_request", message, {})
    if isinstance(error, HTTPException):
        codes = {
            401: "unauthorized",
            404: "not_found",
            405: "method_not_allowed",
            408: "too_slow",
            413: "too_large",
        }
        code = codes.get(error.status_code, "invalid_request")
        return Problem(error.status_code, code, error.detail, error.headers or {})
    return Problem(500, "internal_error", "the server failed; its log says how", {})


def route(path: str, handler: Handler, error_body: ErrorBody, *, method: str = "POST") -> Route:
    """A route whose handler may raise anything, and is given up when the client goes away."""

    async def answer(request: Request) -> Response:
        request.scope[ROUTE] = path
        try:
            await _whole_body(request)
            return await _unless_gone(request, handler(request))
        except (GoneError, ClientDisconnect):
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                _log_failure(error, request.scope)
            return JSONResponse(error_body(problem), problem.status, headers=dict(problem.headers))

    return Route(path, answer, methods=[method])


def _log_failure(error: BaseException, scope: Scope) -> None:
    where = {"route": scope.get(ROUTE), "request_id": scope.get(REQUEST_ID)}
    logger.error("failed", exc_info=error, extra=where)


async def _whole_body(request: Request) -> None:
    """
    Raises:
        HTTPException: it takes too long.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            await request.body()
    except TimeoutError as error:
        raise HTTPException(
            408,
            f"expected the whole body within {BODY_SECONDS:g} s, found a part of it",
            {"Connection": "close"},
        ) from error


class Events(Response):
    """Server-sent events (WHATWG HTML, section 9.2), until the last or until the client goes.

    Args:
        events: data of each; of the first, whatever can go wrong before any has already gone well
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _race(self._send(send), receive)
        except GoneError:
            scope[BROKEN] = 499
        except FailedStreamError as failure:
            scope[BROKEN] = failure.status
            if failure.status == 500 and failure.__cause__ is not None:
                _log_failure(failure.__cause__, scope)

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        end = {"type": "http.response.body", "body": b"", "more_body": False}
        try:
            async for event in self._events:
                body = event.encode()
                async with asyncio.timeout(READING_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError as error:
            raise GoneError from error
        except FailedStreamError:
            await send(end)
            raise
        await send(end)


def event(data: Any, name: str | None = None) -> str:
    """One event, of data as JSON or as a text."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n"


async def primed(items: AsyncIterator[Outcome]) -> AsyncIterator[Outcome]:
    """The same items, after waiting for the first: an error before it can still be an answer."""
    try:
        first = await anext(items)
    except StopAsyncIteration:
        return _nothing()
    return _with_first(first, items)


async def _nothing() -> AsyncIterator[Any]:
    return
    yield


async def _with_first(first: Outcome, items: AsyncIterator[Outcome]) -> AsyncIterator[Outcome]:
    yield first
    async for item in items:
        yield item


async def _unless_gone(request: Request, work: Awaitable[Outcome]) -> Outcome:
    """
    Raises:
        GoneError: the client has gone; the work is cancelled.
    """
    return await _race(work, request.receive)


async def _race(work: Awaitable[Outcome], receive: Receive) -> Outcome:
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise GoneError
    finally:
        for task in (working, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
