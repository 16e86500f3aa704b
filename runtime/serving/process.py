"""The process of a server: sockets, signals and logs."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

import uvicorn
from starlette.types import ASGIApp

from dragoman.errors import DragomanError

from .app import create_app
from .options import ListenOptions, ServerOptions

logger = logging.getLogger("dragoman.serving")

LOGGERS = ("dragoman.serving", "uvicorn.error")
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
"""Attributes of a log record that were not given in `extra`."""


def serve(
    directories: dict[str, Path],
    options: ServerOptions,
    listen: ListenOptions,
    *,
    preload: bool = True,
) -> None:
    """Serve requests until SIGTERM or SIGINT.

    The server then refuses new requests, and running ones have `drain_seconds` to finish.

    Args:
        directories: bundle directories by model name
        preload: see `create_app`

    Raises:
        DragomanError: the port is not available, or the certificate or key cannot be read.
        BundleError: a directory does not hold a bundle.
    """
    check_certificate(listen)
    bound = bind(listen)
    run_app(create_app(directories, options, preload=preload), bound, listen)


def run_app(
    app: ASGIApp,
    bound: socket.socket,
    listen: ListenOptions,
    *,
    lifespan: Literal["on", "off"] = "on",
) -> None:
    """Run an application on a socket until the process is told to stop.

    Raises:
        DragomanError: the application could not start.
    """
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.private_key,
        timeout_graceful_shutdown=listen.drain_seconds,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan=lifespan,
    )
    server = _Server(config)
    with json_logs(), closing(bound):
        try:
            server.run(sockets=[bound])
        except SystemExit:  # from uvicorn if startup fails; from signals at the end
            if server.started:
                raise
    if not server.started:
        raise DragomanError("the server could not start; its log says why")


class _Server(uvicorn.Server):
    """A server that logs its address when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            scheme = "https" if self.config.is_ssl else "http"
            host, port, *_ = sockets[0].getsockname()
            host = f"[{host}]" if ":" in host else host
            logger.info("listening", extra={"url": f"{scheme}://{host}:{port}"})


def check_certificate(listen: ListenOptions) -> None:
    """Check that a TLS certificate and its key can be read.

    Raises:
        DragomanError: the certificate or the key is missing or cannot be read.
    """
    certificate, key = listen.certificate, listen.private_key
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise DragomanError("expected both a certificate and its private key, found one of them")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # includes ssl.SSLError
        raise DragomanError(
            f"{certificate}, {key}: expected a certificate and its key in PEM: {error}"
        ) from error


def bind(listen: ListenOptions) -> socket.socket:
    """Open a listening socket.

    Raises:
        DragomanError: the address or port is not available.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY. Otherwise the body of a response, sent
    # after its head, would wait 40 ms for the client's delayed acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listen.host, listen.port))
    except OSError as error:
        bound.close()
        raise DragomanError(
            f"cannot listen on {listen.host}, port {listen.port}: {error.strerror or error}"
        ) from error
    return bound


class JsonFormatter(logging.Formatter):
    """Formats a log record and its `extra` fields as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {k: value for k, value in vars(record).items() if k not in STANDARD_FIELDS}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which may be replaced and closed."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_as_json() -> None:
    """Configure only the server's loggers to write JSON to standard error."""
    handler = _StandardErrorHandler()
    handler.setFormatter(JsonFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


@contextmanager
def json_logs() -> Iterator[None]:
    """Log as JSON within the context."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    log_as_json()
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
