"""The process: sockets, signals, draining."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import Literal

import uvicorn
from starlette.applications import Starlette

from dragoman.errors import DragomanError

from .app import create_app
from .logs import log_as_json
from .options import ListenOptions, ServerOptions

logger = logging.getLogger("dragoman.serving")


def serve(
    directories: dict[str, Path],
    options: ServerOptions,
    listen: ListenOptions,
    *,
    preload: bool = True,
) -> None:
    """Answer requests until the process is told to stop (SIGTERM, SIGINT); those that are being
    answered then have `drain_seconds` to end, while no others are accepted.

    Args:
        preload: see `create_app`

    Raises:
        DragomanError: the port cannot be had, or a certificate or key cannot be read.
        BundleError: a directory is no bundle.
    """
    check_certificate(listen)
    bound = bind(listen)
    run_app(create_app(directories, options, preload=preload), bound, listen)


def run_app(
    app: Starlette,
    bound: socket.socket,
    listen: ListenOptions,
    *,
    lifespan: Literal["on", "off"] = "on",
) -> None:
    """Let an application answer at a socket until the process is told to stop.

    Raises:
        DragomanError: it could not start.
    """
    log_as_json()
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
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()
    if not server.started:
        raise DragomanError("the server could not start; its log says why")


class _Server(uvicorn.Server):
    """Says when and where it answers."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self.started:
            scheme = "https" if self.config.is_ssl else "http"
            host, port, *_ = sockets[0].getsockname()
            host = f"[{host}]" if ":" in host else host
            logger.info("listening", extra={"url": f"{scheme}://{host}:{port}"})


def check_certificate(listen: ListenOptions) -> None:
    """
    Raises:
        DragomanError: one of certificate and key is missing, or they cannot be read.
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
    """A socket at the address and port.

    Raises:
        DragomanError: they cannot be had.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # With the protocol named, asyncio lets small packets go at once: an answer, whose head and body
    # are two, would otherwise wait 40 ms for the client's delayed acknowledgement.
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
