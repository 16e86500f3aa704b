"""ASGI middleware: identifies, authorizes, logs and counts each request."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api_keys import ApiKeys, UnauthorizedError
from .apis import http
from .apis.http import CLIENT_GONE, ROUTE, STREAM_STATUS, BodyTooLargeError, Protocol
from .metrics import Metrics

logger = logging.getLogger("dragoman.serving")

REQUEST_ID = "X-Request-Id"
LOGGED_BYTES = 4096
"""How much of a body the log shows."""
OUTCOMES = {429: "overloaded", CLIENT_GONE: "gone", 504: "timeout"}


class RequestMiddleware:
    """Identifies, authorizes, logs and counts requests.

    Args:
        protocols: protocols of the server; the first with a prefix of the path reports a missing
            key
        log_bodies: whether the log shows the beginning of bodies
        body_bytes: maximum size of a body; None: unlimited
    """

    def __init__(
        self,
        app: ASGIApp,
        protocols: Sequence[Protocol],
        keys: ApiKeys,
        metrics: Metrics,
        *,
        log_bodies: bool = False,
        body_bytes: int | None = None,
    ) -> None:
        self._app, self._protocols, self._keys, self._metrics = app, protocols, keys, metrics
        self._log_bodies, self._body_bytes = log_bodies, body_bytes
        endpoints = [endpoint for protocol in protocols for endpoint in protocol.endpoints]
        self._open = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_open)
        self._polled = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_polled)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, body, size = time.monotonic(), CLIENT_GONE, b"", 0
        headers = Headers(scope=scope)
        identifier = scope[http.REQUEST_ID] = request_id(headers.get(REQUEST_ID))

        async def receive_counting() -> Message:
            nonlocal body, size
            message = await receive()
            part: bytes = message.get("body", b"")
            size += len(part)
            if self._log_bodies:
                body = (body + part)[:LOGGED_BYTES]
            if self._body_bytes is not None and size > self._body_bytes:
                raise BodyTooLargeError(
                    f"expected a body of at most {self._body_bytes} bytes, found more"
                )
            return message

        async def send_identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = identifier
            await send(message)

        try:
            if scope["path"] not in self._open:
                self._keys.check(headers)
            await self._app(scope, receive_counting, send_identified)
        except UnauthorizedError as error:
            answer = self._protocol_of(scope["path"]).error_response(error)
            await answer(scope, receive, send_identified)
        except Exception:  # a defect; the application responds with 500
            status = 500
            raise
        finally:
            seconds = time.monotonic() - start
            status, route = scope.get(STREAM_STATUS, status), scope.get(ROUTE, "other")
            self._metrics.request_ended(route, _outcome(status), seconds)
            extra = {
                "request_id": identifier,
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
            }
            if self._log_bodies:
                extra["body"] = body.decode(errors="replace")
            level = logging.DEBUG if route in self._polled and status < 400 else logging.INFO
            logger.log(level, "request", extra=extra)

    def _protocol_of(self, path: str) -> Protocol:
        return next(one for one in self._protocols if path.startswith(one.prefixes))


def request_id(sent: str | None) -> str:
    """Return the client's identifier if it is a printable ASCII word, else a new one."""
    if sent is not None and re.fullmatch(r"[!-~]{1,128}", sent):
        return sent
    return secrets.token_hex(8)


def _outcome(status: int) -> str:
    if status in OUTCOMES:
        return OUTCOMES[status]
    if status < 400:
        return "ok"
    return "client_error" if status < 500 else "server_error"
