"""The process of a server: its sockets, signals and logs."""

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
    """Answer requests until the process is told to stop by SIGTERM or SIGINT.

    From then on no requests are accepted, and running ones may take `drain_seconds` to end.

    Args:
        directories: the directory of each bundle, by its name
        preload: see `create_app`

    Raises:
        DragomanError: the port is not available, or certificate and key cannot be read.
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
    """Let an application answer at a socket until the process is told to stop.

    Raises:
        DragomanError: it could not start.
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
        except SystemExit:  # of uvicorn, if startup fails; of signals, when the server has ended
            if server.started:
                raise
    if not server.started:
        raise DragomanError("the server could not start; its log says why")


class _Server(uvicorn.Server):
    """Logs the address when it listens."""

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
        DragomanError: one of them is missing, or they cannot be read.
    """
    certificate, key = listen.certificate, listen.private_key
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise DragomanError("expected both a certificate and its private key, found one of them")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError, too
        raise DragomanError(
            f"{certificate}, {key}: expected a certificate and its key in PEM: {error}"
        ) from error


def bind(listen: ListenOptions) -> socket.socket:
    """Open a socket at an address and port.

    Raises:
        DragomanError: they are not available.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # With the protocol named, asyncio sends small packets at once (TCP_NODELAY): an answer, whose
    # head and body are two, would otherwise wait 40 ms for the client's delayed acknowledgement.
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
    """Writes a log record, and the fields given in `extra`, as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
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
    """Writes to what `sys.stderr` is at the moment, which may be replaced and closed."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_as_json() -> None:
    """Let the server's loggers, and no others, write JSON to standard error."""
    handler = _StandardErrorHandler()
    handler.setFormatter(JsonFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


@contextmanager
def json_logs() -> Iterator[None]:
    """Log as JSON for as long as the context lasts."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    log_as_json()
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
