"""What every request goes through: an id, a key, a line in the log, metrics."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .apis import http, kserve, native
from .apis.http import BROKEN, ROUTE, ErrorBody, problem_of
from .apis.openai import errors as openai_errors
from .keys import Keys
from .metrics import Metrics

logger = logging.getLogger("dragoman.serving")

REQUEST_ID = "X-Request-Id"
PAGE_FILES = "/page/"
"""Where the page's files are."""
OPEN = frozenset({"/", "/health/live", "/health/ready", "/translate", "/languages"})
"""Paths that need no key: the page asks for one, and LibreTranslate's have it in their bodies."""
OPEN_PREFIXES = (PAGE_FILES, "/v2/health/")

PROBED = frozenset({"/health/live", "/health/ready", "/metrics", "/v2/health/live"})
"""Routes that are asked so often that logs need not say it."""
ERROR_BODIES: dict[str, ErrorBody] = {
    "/v2": kserve.error_body,
    **dict.fromkeys(
        ("/v1/audio", "/v1/completions", "/v1/embeddings", "/v1/models"), openai_errors.error_body
    ),
}
"""How errors are written, by how paths begin; those of others as Dragoman's own protocol does."""
OUTCOMES = {429: "overloaded", 499: "gone", 504: "timeout"}


class Recorder:
    """
    Args:
        log_bodies: whether lines show the beginning of bodies
        body_bytes: the most that a body may have
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        metrics: Metrics,
        *,
        log_bodies: bool = False,
        body_bytes: int | None = None,
    ) -> None:
        self._app, self._keys, self._metrics = app, keys, metrics
        self._log_bodies, self._body_bytes = log_bodies, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, body, size = time.monotonic(), 499, b"", 0
        headers = Headers(scope=scope)
        number = scope[http.REQUEST_ID] = request_id(headers.get(REQUEST_ID))

        async def receive_noting() -> Message:
            nonlocal body, size
            message = await receive()
            part: bytes = message.get("body", b"")
            size += len(part)
            if self._log_bodies:
                body = (body + part)[:LOGGED]
            if self._body_bytes is not None and size > self._body_bytes:
                raise HTTPException(
                    413,
                    f"expected a body of at most {self._body_bytes} bytes, found more",
                    {"Connection": "close"},
                )
            return message

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = number
            await send(message)

        try:
            path = scope["path"]
            if path not in OPEN and not path.startswith(OPEN_PREFIXES):
                self._keys.check(headers)
            await self._app(scope, receive_noting, send_noting)
        except HTTPException as error:  # of a key
            problem = problem_of(error)
            body_of = _error_body(path)
            answer = JSONResponse(body_of(problem), problem.status, headers=dict(problem.headers))
            await answer(scope, receive, send_noting)
        except Exception:  # a defect, which the application answers with 500
            status = 500
            raise
        finally:
            seconds = time.monotonic() - started
            status, route = scope.get(BROKEN, status), scope.get(ROUTE, "other")
            self._metrics.answered(route, _outcome(status), seconds)
            extra = {
                "request_id": number,
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
            }
            if self._log_bodies:
                extra["body"] = body.decode(errors="replace")
            level = logging.DEBUG if route in PROBED and status < 400 else logging.INFO
            logger.log(level, "request", extra=extra)


LOGGED = 4096
"""Bytes of a body."""


def request_id(given: str | None) -> str:
    """A client's own, if it is one word of printable ASCII; else a new one."""
    if given is not None and re.fullmatch(r"[!-~]{1,128}", given):
        return given
    return secrets.token_hex(8)


def _error_body(path: str) -> ErrorBody:
    found = (body for begin, body in ERROR_BODIES.items() if path.startswith(begin))
    return next(found, native.error_body)


def _outcome(status: int) -> str:
    if status in OUTCOMES:
        return OUTCOMES[status]
    if status < 400:
        return "ok"
    return "client_error" if status < 500 else "server_error"
