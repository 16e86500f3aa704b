"""Shared parts of the HTTP protocols."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
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

from ..engine.request_queue import CLOSED, ClosedError
from ..models import ServedModel
from .bodies import BodyError, Fields, json_object

logger = logging.getLogger("dragoman.serving")

Outcome = TypeVar("Outcome")
Handler = Callable[[Any, Request], Awaitable[Response]]
"""Takes the service and a request."""

BODY_SECONDS = 120.0
"""How long a client may take to send the body of its request."""
READING_SECONDS = 60.0
"""How long a client may take to read an event."""
LAST_EVENT_SECONDS = 1.0
"""How long a client may take to read that the server is shutting down."""

CLOSE_CONNECTION = MappingProxyType({"Connection": "close"})
CLIENT_GONE = 499
"""The status of a request whose client disconnected, in logs and metrics."""

ROUTE = "dragoman.route"
"""Key of a request's scope: the path of its endpoint."""
MODEL = "dragoman.model"
"""Key of a request's scope: the name of the model that it uses, once that is known."""
REQUEST_ID = "dragoman.request_id"
"""Key of a request's scope: its identifier in the log."""
STREAM_STATUS = "dragoman.stream_status"
"""Key of a request's scope: the HTTP status of a stream that failed after it had begun."""


class Drain:
    """The end of a server.

    All methods run on the event loop.
    """

    def __init__(self) -> None:
        self._begun, self._expired = False, False
        self._actions: set[Callable[[], None]] = set()

    def begin(self, seconds: float) -> None:
        """Refuse new requests, and fail the running ones after some seconds."""
        self._begun = True
        asyncio.get_running_loop().call_later(seconds, self._expire)

    def check(self) -> None:
        """Raise a `ClosedError` if the server is shutting down."""
        if self._begun:
            raise ClosedError(CLOSED)

    @contextmanager
    def on_expiry(self, action: Callable[[], None]) -> Iterator[None]:
        """Call a function if running requests have to end within the context."""
        if self._expired:
            action()
        self._actions.add(action)
        try:
            yield
        finally:
            self._actions.discard(action)

    def _expire(self) -> None:
        self._expired = True
        for action in list(self._actions):
            action()


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of a protocol."""

    path: str
    """Path in Starlette's form, such as `/v1/models/{model}`."""
    handler: Handler
    """Coroutine that may raise any error; cancelled when the client disconnects."""
    method: str = "POST"
    is_open: bool = False
    """Whether the endpoint needs no API key, or checks the key itself."""
    is_polled: bool = False
    """Whether successful requests are left out of the log."""


@dataclass(frozen=True)
class Protocol:
    """Endpoints that report errors in the same form."""

    name: str
    """Name in logs and metrics."""
    endpoints: tuple[Endpoint, ...]
    prefixes: tuple[str, ...]
    """Path prefixes under which unauthorized requests are also answered in this form."""
    error_body: Callable[[DragomanError], Any]
    """Creates the JSON body that reports an error."""
    error_event: str | None = None
    """Name of the server-sent event that reports an error; None: unnamed."""

    def routes(self, service: Any) -> list[Route]:
        """Return the routes of all endpoints."""
        drain = Drain() if service is None else service.drain
        return [_route(endpoint, self, service, drain) for endpoint in self.endpoints]

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


def _route(endpoint: Endpoint, protocol: Protocol, service: Any, drain: Drain) -> Route:
    async def answer(request: Request) -> Response:
        try:
            drain.check()
            await _read_body(request, drain)
            work = endpoint.handler(service, request)
            response = await _unless_over(work, request.receive, drain)
        except (ClientGoneError, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)  # never read
        except Exception as error:
            _log_failure(error, request.scope)
            return protocol.error_response(error)
        if isinstance(response, Events):
            response.protocol, response.drain = protocol, drain
        return response

    return Route(endpoint.path, answer, methods=[endpoint.method])


async def read_request(
    service: Any, request: Request, *, names_model: bool = False
) -> tuple[Fields, ServedModel]:
    """Read the body of a request, and attribute the request to its `model`.

    Args:
        names_model: whether the body has to name a model, even if there is only one
    """
    fields = Fields(json_object(await request.body()))
    name = fields.require("model", str) if names_model else fields.take("model", str)
    return fields, attributed(request, service.models.get(name))


def error_message(error: DragomanError) -> dict[str, str]:
    """Return the JSON body of an error that has only its message."""
    return {"error": str(error)}


def attributed(request: Request, served: ServedModel) -> ServedModel:
    """Attribute a request to a model in logs and metrics."""
    request.scope[MODEL] = served.name
    return served


def _log_failure(error: Exception, scope: Scope) -> None:
    if reported_error(error).status == 500:
        keys = {"request_id": REQUEST_ID, "route": ROUTE, "model": MODEL}
        where = {name: scope.get(key) for name, key in keys.items()}
        logger.error("failed", exc_info=error, extra=where)


async def _read_body(request: Request, drain: Drain) -> None:
    try:
        async with asyncio.timeout(BODY_SECONDS) as limit:
            with drain.on_expiry(lambda: limit.reschedule(0)):
                await request.body()
    except TimeoutError as error:
        drain.check()
        raise BodyTooSlowError(
            f"expected the whole body within {BODY_SECONDS:g} s, found a part of it"
        ) from error


@asynccontextmanager
async def opened_form(
    request: Request, *, max_files: int = 1, max_fields: int = 1000
) -> AsyncIterator[FormData]:
    """Read a form and keep its files open within the context."""
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
    """Server-sent events (WHATWG HTML, section 9.2), which end when the client disconnects.

    After a failure, the last event reports the error.

    Attributes:
        protocol: protocol that reports errors; set when a handler returns the events
        drain: ends the events of a server that is shutting down; set likewise

    Args:
        events: output of `server_sent_event`; use `started` to raise errors before the first event
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self.protocol: Protocol | None = None
        self.drain = Drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            try:
                await _unless_over(self._send(scope, send), receive, self.drain)
            except ClosedError as error:
                await self._send_body(self._error_event(error, scope), send, LAST_EVENT_SECONDS)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGoneError:
            scope[STREAM_STATUS] = CLIENT_GONE

    async def _send(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._with_error(scope)) as events:
            async for event in events:
                await self._send_body(event, send, READING_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_body(self, event: str, send: Send, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                body = event.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError as error:
            raise ClientGoneError from error

    async def _with_error(self, scope: Scope) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self._events):
                async for event in self._events:
                    yield event
        except Exception as error:
            if self.protocol is None:
                raise
            _log_failure(error, scope)
            yield self._error_event(error, scope)

    def _error_event(self, error: Exception, scope: Scope) -> str:
        known = reported_error(error)
        scope[STREAM_STATUS] = known.status
        if self.protocol is None:
            return ""
        return server_sent_event(self.protocol.error_body(known), self.protocol.error_event)


def server_sent_event(data: Any, name: str | None = None) -> str:
    """Format a text or a JSON value as a server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n"


async def started(items: AsyncGenerator[Outcome, None]) -> AsyncGenerator[Outcome, None]:
    """Wait for the first item, so that an earlier error becomes an ordinary response."""
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


async def _unless_over(work: Awaitable[Outcome], receive: Receive, drain: Drain) -> Outcome:
    """Wait for work; cancel it if the client disconnects or the time to drain has passed."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ends: list[asyncio.Future[Any]] = [working, gone, over]
    try:
        with drain.on_expiry(partial(over.set_result, None)):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError if gone.done() else ClosedError(CLOSED)
    finally:
        for task in (working, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
