"""Shared parts of the HTTP protocols: endpoints, errors, event streams, disconnected clients."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError

from .bodies import BodyError

logger = logging.getLogger("dragoman.serving")

Outcome = TypeVar("Outcome")
Handler = Callable[[Any, Request], Awaitable[Response]]
"""Takes the service and a request."""

BODY_SECONDS = 120.0
"""How long a client may take to send the body of its request."""
READING_SECONDS = 60.0
"""How long a client may take to read an event."""

CLOSE_CONNECTION = MappingProxyType({"Connection": "close"})
CLIENT_GONE = 499
"""The status of a request whose client disconnected, in logs and metrics."""

ROUTE = "dragoman.route"
"""Key of a request's scope: the path of its endpoint."""
REQUEST_ID = "dragoman.request_id"
"""Key of a request's scope: its identifier in the log."""
STREAM_STATUS = "dragoman.stream_status"
"""Key of a request's scope: the HTTP status of a stream that failed after it had begun."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of a protocol.

    Attributes:
        path: path in Starlette's form, such as `/v1/models/{model}`
        handler: coroutine that may raise any error; cancelled when the client disconnects
        method: HTTP method
        is_open: whether the endpoint needs no API key, or checks the key itself
        is_polled: whether successful requests are left out of the log
    """

    path: str
    handler: Handler
    method: str = "POST"
    is_open: bool = False
    is_polled: bool = False


@dataclass(frozen=True)
class Protocol:
    """Endpoints that report errors in the same form.

    Attributes:
        prefixes: path prefixes under which unauthorized requests are also answered in this form
        error_body: creates the JSON body that reports an error
        error_event: name of the server-sent event that reports an error; None: unnamed
    """

    endpoints: tuple[Endpoint, ...]
    prefixes: tuple[str, ...]
    error_body: Callable[[DragomanError], Any]
    error_event: str | None = None

    def routes(self, service: Any) -> list[Route]:
        """Return the routes of all endpoints.

        Args:
            service: argument of the handlers
        """
        return [_route(endpoint, self, service) for endpoint in self.endpoints]

    def error_response(self, error: Exception) -> Response:
        """Return the response that reports an error."""
        known = reported_error(error)
        return JSONResponse(self.error_body(known), known.status, headers=dict(known.headers))


class BodyTooSlowError(BodyError):
    """The body of a request did not arrive in time."""

    status, code = 408, "too_slow"
    headers = CLOSE_CONNECTION


class BodyTooLargeError(BodyError):
    """The body of a request is larger than the server allows."""

    status, code = 413, "too_large"
    headers = CLOSE_CONNECTION


class InternalError(DragomanError):
    """The server failed; the client receives no details."""

    status, code = 500, "internal_error"


class ClientGoneError(Exception):
    """The client has disconnected."""


def reported_error(error: Exception) -> DragomanError:
    """Return the error to report to the client."""
    if isinstance(error, DragomanError):
        return error
    if isinstance(error, HTTPException):  # from Starlette: unknown route or malformed form
        known = DragomanError(error.detail)
        known.status, known.headers = error.status_code, error.headers or {}
        if error.status_code in (404, 405):
            known.code = HTTPStatus(error.status_code).name.lower()
        return known
    return InternalError("the server failed; its log says how")


def _route(endpoint: Endpoint, protocol: Protocol, service: Any) -> Route:
    async def answer(request: Request) -> Response:
        request.scope[ROUTE] = endpoint.path
        try:
            await _read_body(request)
            work = endpoint.handler(service, request)
            response = await _unless_gone(work, request.receive)
        except (ClientGoneError, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)  # never read
        except Exception as error:
            _log_failure(error, request.scope)
            return protocol.error_response(error)
        if isinstance(response, Events):
            response.protocol = protocol
        return response

    return Route(endpoint.path, answer, methods=[endpoint.method])


def _log_failure(error: Exception, scope: Scope) -> None:
    """Log an error of the server."""
    if reported_error(error).status == 500:
        where = {"route": scope.get(ROUTE), "request_id": scope.get(REQUEST_ID)}
        logger.error("failed", exc_info=error, extra=where)


async def _read_body(request: Request) -> None:
    """Read the body of a request, which caches it.

    Raises:
        BodyTooSlowError: the body takes too long.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            await request.body()
    except TimeoutError as error:
        raise BodyTooSlowError(
            f"expected the whole body within {BODY_SECONDS:g} s, found a part of it"
        ) from error


@asynccontextmanager
async def opened_form(
    request: Request, *, max_files: int = 1, max_fields: int = 1000
) -> AsyncIterator[FormData]:
    """Read a form and keep its files open within the context.

    Raises:
        BodyError: the body is not a form in UTF-8.
    """
    try:
        form = await request.form(max_files=max_files, max_fields=max_fields)
        for name, value in form.multi_items():
            (name + (value if isinstance(value, str) else "")).encode()
    except (ValueError, LookupError) as error:
        raise BodyError(f"expected a form, of texts in UTF-8: {error}") from error
    try:
        yield form
    finally:
        await form.close()


class Events(Response):
    """Server-sent events (WHATWG HTML, section 9.2).

    Sending ends early when the client disconnects. After a failure, the last event reports the
    error.

    Attributes:
        protocol: protocol that reports errors; set when a handler returns the events

    Args:
        events: output of `server_sent_event`; use `started` to raise errors before the first event
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self.protocol: Protocol | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await _unless_gone(self._send(scope, send), receive)
        except ClientGoneError:
            scope[STREAM_STATUS] = CLIENT_GONE

    async def _send(self, scope: Scope, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._with_error(scope)) as events:
            async for event in events:
                body = event.encode()
                try:
                    async with asyncio.timeout(READING_SECONDS):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                except TimeoutError as error:
                    raise ClientGoneError from error
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_error(self, scope: Scope) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self._events):
                async for event in self._events:
                    yield event
        except Exception as error:
            if self.protocol is None:
                raise
            _log_failure(error, scope)
            known = reported_error(error)
            scope[STREAM_STATUS] = known.status
            yield server_sent_event(self.protocol.error_body(known), self.protocol.error_event)


def server_sent_event(data: Any, name: str | None = None) -> str:
    """Format a server-sent event.

    Args:
        data: text or a JSON value
    """
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n"


async def started(items: AsyncGenerator[Outcome, None]) -> AsyncGenerator[Outcome, None]:
    """Wait for the first item, so that an earlier error becomes an ordinary response.

    Returns:
        all items, including the first
    """
    try:
        first = await anext(items)
    except StopAsyncIteration:
        return items
    return _with_first(first, items)


async def _with_first(
    first: Outcome, items: AsyncGenerator[Outcome, None]
) -> AsyncGenerator[Outcome, None]:
    async with aclosing(items):
        yield first
        async for item in items:
            yield item


async def _unless_gone(work: Awaitable[Outcome], receive: Receive) -> Outcome:
    """Wait for work to finish.

    Raises:
        ClientGoneError: the client has disconnected; the work is cancelled.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
