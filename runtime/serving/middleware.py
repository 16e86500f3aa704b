"""ASGI middleware: identifies, authorizes, decodes, logs and counts each request."""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
import zlib
from collections.abc import Sequence
from types import MappingProxyType

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.errors import DragomanError, shown

from .apis import http
from .apis.bodies import BodyError
from .apis.http import (
    CLIENT_GONE,
    MODEL,
    ROUTE,
    STREAM_STATUS,
    BodyTooLargeError,
    Endpoint,
    Protocol,
)
from .clients import ApiKeys, Network, UnauthorizedError, client_address
from .metrics import Metrics

logger = logging.getLogger("dragoman.serving")

REQUEST_ID = "X-Request-Id"
LOGGED_BYTES = 4096
"""How much of a body the log shows."""
OTHER_ROUTE = "other"
"""The route of paths that have no endpoint."""
OUTCOMES = {429: "overloaded", CLIENT_GONE: "gone", 504: "timeout"}
GZIP, ZLIB, RAW_DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
"""Formats of zlib's decompressor."""
CODINGS = ("gzip", "deflate")


class CodingError(DragomanError):
    """The body of a request has a content coding that the server cannot decode."""

    status, code = 415, "unsupported_encoding"
    headers = MappingProxyType({"Accept-Encoding": ", ".join(CODINGS), "Connection": "close"})


class BodyDecoder:
    """Decodes a compressed body of at most `most` bytes part by part (RFC 9110, section 8.4.1).

    The coding "deflate" is a zlib stream; clients also send it without zlib's header.
    """

    def __init__(self, coding: str, most: int) -> None:
        self._coding, self._most, self._left, self._waiting = coding, most, most, b""
        self._inflater: zlib._Decompress | None = None

    def decode(self, part: bytes, *, is_last: bool) -> bytes:
        """Decode the next part of the body."""
        self._waiting += part
        found = b""
        try:
            while self._waiting and (len(self._waiting) > 1 or is_last):
                if self._inflater is None:
                    self._inflater = zlib.decompressobj(self._format())
                found += self._inflater.decompress(self._waiting, self._left - len(found) + 1)
                if len(found) > self._left:
                    raise _too_large(self._most)
                self._waiting = self._inflater.unused_data
                if not self._inflater.eof:
                    break
                if self._waiting and self._coding != "gzip":
                    raise BodyError(f"expected nothing after the {self._coding} body, found more")
                self._inflater = None  # gzip: members may follow each other
        except zlib.error as error:
            raise BodyError(f"expected a body in {self._coding}: {error}") from error
        if is_last and self._inflater is not None:
            raise BodyError(f"expected a whole {self._coding} body, found its beginning")
        self._left -= len(found)
        return found

    def _format(self) -> int:
        if self._coding == "gzip":
            return GZIP
        first, second = self._waiting[0], self._waiting[1] if len(self._waiting) > 1 else 0
        has_header = first & 0x0F == zlib.DEFLATED and (first << 8 | second) % 31 == 0
        return ZLIB if has_header else RAW_DEFLATE


class RequestMiddleware:
    """Identifies, authorizes, decodes, logs and counts requests.

    Args:
        protocols: the first with a prefix of the path reports a missing key
        body_bytes: maximum size of a body, also decoded
        root_path: prefix of all paths, which a proxy may remove
        trusted_proxies: see `read_proxies`
    """

    def __init__(
        self,
        app: ASGIApp,
        protocols: Sequence[Protocol],
        keys: ApiKeys,
        metrics: Metrics,
        *,
        log_bodies: bool = False,
        body_bytes: int = sys.maxsize,
        root_path: str = "",
        trusted_proxies: Sequence[Network | str] = (),
    ) -> None:
        self._app, self._protocols, self._keys, self._metrics = app, protocols, keys, metrics
        self._log_bodies, self._body_bytes, self._root_path = log_bodies, body_bytes, root_path
        self._trusted_proxies = trusted_proxies
        self._endpoints = [
            (compile_path(endpoint.path)[0], endpoint, protocol)
            for protocol in protocols
            for endpoint in protocol.endpoints
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "websocket":
            self._locate(scope)
        if scope["type"] != "http":
            await self._app(scope, receive, _without_traceback(send))
            return
        start, status, body, size = time.monotonic(), CLIENT_GONE, b"", 0
        headers, path = Headers(scope=scope), self._locate(scope)
        endpoint, protocol = self._find(path or "/", scope["method"])
        route = scope[ROUTE] = OTHER_ROUTE if endpoint is None else endpoint.path
        identifier = scope[http.REQUEST_ID] = request_id(headers.get(REQUEST_ID))
        decoder: BodyDecoder | None = None

        async def receive_counting() -> Message:
            nonlocal body, size
            message = await receive()
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._body_bytes:
                raise _too_large(self._body_bytes)
            if decoder is not None and message["type"] == "http.request":
                part = decoder.decode(part, is_last=not message.get("more_body", False))
                message = {**message, "body": part}
            if self._log_bodies:
                body = (body + part)[:LOGGED_BYTES]
            return message

        async def send_identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = identifier
            await send(message)

        try:
            if endpoint is None or not endpoint.is_open:
                self._keys.check(headers)
            if int(headers.get("content-length", 0)) > self._body_bytes:
                raise _too_large(self._body_bytes)  # before the client sends it
            decoder = self._decoder(headers)
            # Links of the page at the root are relative. So is the redirection to it, since the
            # scheme and host that a proxy is reached at are unknown.
            app: ASGIApp = self._app if path else RedirectResponse(scope["root_path"] + "/")
            await app(scope, receive_counting, send_identified)
        except (UnauthorizedError, CodingError, BodyTooLargeError) as error:
            answer = protocol.error_response(error)
            await answer(scope, receive, send_identified)
        except Exception:  # a defect; the application responds with 500
            status = 500
            raise
        finally:
            seconds = time.monotonic() - start
            status, model = scope.get(STREAM_STATUS, status), scope.get(MODEL)
            self._metrics.request_ended(
                model, protocol.name, route, outcome=_outcome(status), seconds=seconds
            )
            extra = {
                "request_id": identifier,
                "client": client_address(scope, self._trusted_proxies),
                "method": scope["method"],
                "protocol": protocol.name,
                "route": route,
                "model": model,
                "status": status,
                "seconds": round(seconds, 4),
            }
            if self._log_bodies:
                extra["body"] = body.decode(errors="replace")
            is_polled = endpoint is not None and endpoint.is_polled
            level = logging.DEBUG if is_polled and status < 400 else logging.INFO
            logger.log(level, "request", extra=extra)

    def _locate(self, scope: Scope) -> str:
        """Set the root path of a request, and return the path below it; "" is the root itself.

        Doubled slashes and those at the end are removed.
        """
        scope["path"] = re.sub("//+", "/", scope["path"])
        root = scope.get("root_path", "")
        if self._root_path and not root:
            root = scope["root_path"] = self._root_path
            if not f"{scope['path']}/".startswith(f"{root}/"):  # the proxy has removed it
                scope["path"] = root + scope["path"]
        path: str = scope["path"].removeprefix(root)
        if not path:
            return path
        path = path.removesuffix("/") or "/"
        scope["path"] = root + path
        return path

    def _decoder(self, headers: Headers) -> BodyDecoder | None:
        stated = ", ".join(headers.getlist("content-encoding"))
        coding = stated.strip().lower().removeprefix("x-")
        if coding in ("", "identity"):
            return None
        if coding not in CODINGS:
            raise CodingError(
                f"content-encoding: expected {', '.join(CODINGS)} or none, found {shown(stated)}"
            )
        return BodyDecoder(coding, self._body_bytes)

    def _find(self, path: str, method: str) -> tuple[Endpoint | None, Protocol]:
        """Return the endpoint of a path, for the method if there is one, and its protocol.

        They are known before a key is checked, so that refused requests are counted under their
        route. Labels of metrics never hold an unknown path that a client sends.
        """
        first: tuple[Endpoint, Protocol] | None = None
        for pattern, endpoint, protocol in self._endpoints:
            if pattern.match(path):
                if endpoint.method == method:
                    return endpoint, protocol
                first = first or (endpoint, protocol)
        if first is not None:
            return first
        return None, next(one for one in self._protocols if path.startswith(one.prefixes))


def _too_large(most: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"expected a body of at most {most} bytes, found more")


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


def _without_traceback(send: Send) -> Send:
    """Return a `send` that reports a failed start in one line, not with Starlette's traceback."""

    async def report(message: Message) -> None:
        error = sys.exception()
        if message["type"] == "lifespan.startup.failed" and isinstance(error, DragomanError):
            message = {**message, "message": str(error)}
        await send(message)

    return report
