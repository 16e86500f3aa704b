"""The process of a server: sockets, signals and logs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TextIO

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.errors import LONGEST_VALUE, DragomanError, shortened

from .app import create_app
from .clients import read_keys
from .options import ListenOptions, ServerOptions
from .service import Service

logger = logging.getLogger("dragoman.serving")

ANSWER_SECONDS = 2
"""How long clients may take to read their last answers, after the time to drain."""
END_SECONDS = 5
"""Seconds after the time to drain in which the process ends, even if threads still compute."""
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

    Running requests then have `drain_seconds` to finish. A second signal ends the process at once.
    SIGHUP reads API keys and the TLS certificate again.

    Raises:
        DragomanError: the address is not available, or keys or certificate cannot be read.
        BundleError: a directory does not hold a bundle.
        KeyboardInterrupt: the server was stopped by SIGINT.
    """
    with early_signals() as opened:
        tls = tls_context(listen)
        if listen.api_key_file is not None:
            options = dataclasses.replace(options, api_keys=read_keys(listen.api_key_file))
        bound = opened.enter_context(listening(listen))
        app = create_app(directories, options, preload=preload)
        run_app(app, bound, listen, tls=tls, service=app.state.service)


def run_app(
    app: ASGIApp,
    bound: socket.socket,
    listen: ListenOptions,
    *,
    tls: ssl.SSLContext | None = None,
    service: Service | None = None,
    lifespan: Literal["on", "off"] = "on",
) -> None:
    """Run an application on a socket until the process is told to stop.

    Args:
        service: ends its requests when the time to drain has passed; SIGHUP replaces its API keys

    Raises:
        DragomanError: the application could not start.
        KeyboardInterrupt: the server was stopped by SIGINT.
    """
    server = Server(configuration(app, listen, lifespan=lifespan), bound, listen, tls, service)
    with json_logs(), closing(bound):
        try:
            server.run(sockets=[bound])
        except SystemExit:  # from uvicorn if startup fails
            if server.started:
                raise
        finally:
            server.cancel_end()
    if not server.started:
        raise DragomanError("the server could not start; its log says why")
    if server.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt


@contextmanager
def early_signals() -> Iterator[ExitStack]:
    """Let SIGTERM end the process cleanly, and SIGHUP wait, outside `Server.capture_signals`.

    Yields:
        a stack of contexts, which end with this one, or before SIGTERM ends the process
    """
    if not _handles_signals():
        with ExitStack() as opened:
            yield opened
        return
    opened = ExitStack()

    def leave(number: int, frame: FrameType | None) -> None:
        try:
            opened.close()
        finally:
            os._exit(0)

    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, leave)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with opened:
            yield opened
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # forgets one that still waits
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handles_signals() -> bool:
    return sys.platform != "win32" and threading.current_thread() is threading.main_thread()


MOST_MESSAGE_BYTES = 1 << 20
"""Maximum size of a WebSocket message: half a minute of audio."""


def configuration(
    app: ASGIApp, listen: ListenOptions, *, lifespan: Literal["on", "off"] = "on"
) -> uvicorn.Config:
    """Return uvicorn's configuration of a server."""
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="websockets-sansio",
        ws_max_size=MOST_MESSAGE_BYTES,
        host=listen.host,
        port=listen.port,
        timeout_graceful_shutdown=listen.drain_seconds + 2 * ANSWER_SECONDS,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the application reads them, from trusted proxies
        server_header=False,
        lifespan=lifespan,
    )


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP, where responses of unknown length to HTTP/1.0 end with the connection.

    HTTP/1.0, which nginx uses by default, has no chunks (RFC 9112, section 6.1).
    """

    def on_headers_complete(self) -> None:
        """Begin to handle a request."""
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            self.cycle.__class__ = _OldCycle


class _OldCycle(RequestResponseCycle):
    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_open = b"content-length" not in names
            if self._is_open:
                self.chunked_encoding = False
        elif self._is_open:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class Server(uvicorn.Server):
    """A server that stops in order at a signal, at once at a second one.

    Attributes:
        stopped_by: number of the signal; None: there was none
    """

    def __init__(
        self,
        config: uvicorn.Config,
        bound: socket.socket,
        listen: ListenOptions,
        tls: ssl.SSLContext | None,
        service: Service | None,
    ) -> None:
        super().__init__(config)
        self.stopped_by: int | None = None
        self._bound, self._listen, self._service = bound, listen, service
        self._end: threading.Timer | None = None
        self._tls = tls
        """The context of new connections, which SIGHUP replaces."""
        config.load()
        if tls is not None:
            config.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            config.ssl.sni_callback = self._choose_certificate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve requests."""
        await super().startup(sockets)
        if sockets and self.started:
            scheme = "http" if self._tls is None else "https"
            logger.info("listening", extra={"url": url_of(sockets[0], scheme)})
            notify_manager("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, and wait for running requests."""
        notify_manager("STOPPING=1")
        seconds = self._listen.drain_seconds
        if self._service is not None:
            self._service.drain.begin(seconds)
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, loop.call_later, ANSWER_SECONDS, self._disconnect)
        self._end = threading.Timer(seconds + END_SECONDS, self._leave)
        self._end.daemon = True
        self._end.start()
        await super().shutdown(sockets)

    def cancel_end(self) -> None:
        """Let the process live on, since the server has ended."""
        if self._end is not None:
            self._end.cancel()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle SIGTERM, SIGINT and SIGHUP within the context, in the main thread."""
        with super().capture_signals():
            if not _handles_signals():
                yield
                return
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._read_again)
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop in order; at once if it is the second signal, or nothing has been served yet."""
        is_second, self.stopped_by, self.should_exit = self.should_exit, sig, True
        if is_second or not self.started:
            self._leave(is_clean=not is_second)

    def _leave(self, *, is_clean: bool = True) -> None:
        self._bound.close()
        remove_path(self._listen)
        number = self.stopped_by or 0
        os._exit(0 if is_clean and number == signal.SIGTERM else 128 + number)

    def _disconnect(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _choose_certificate(
        self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        if self._tls is not None:
            connection.context = self._tls

    def _read_again(self) -> None:
        """Read API keys and certificate again; what cannot be read stays as it was."""
        listen = self._listen
        try:
            if listen.api_key_file is not None and self._service is not None:
                keys = read_keys(listen.api_key_file)
                self._service.api_keys.replace(keys)
                extra = {"file": str(listen.api_key_file), "keys": len(keys)}
                logger.info("API keys read again", extra=extra)
        except DragomanError as error:
            logger.error("API keys not read again", extra={"error": str(error)})
        try:
            if self._tls is not None:
                self._tls = tls_context(listen)
                extra = {"file": str(listen.certificate)}
                logger.info("certificate read again", extra=extra)
        except DragomanError as error:
            logger.error("certificate not read again", extra={"error": str(error)})


def notify_manager(state: str) -> None:
    """Report a state to the service manager, if it asks for it; see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.sendto(state.encode(), address.replace("@", "\0", 1))


def tls_context(listen: ListenOptions) -> ssl.SSLContext | None:
    """Read the TLS certificate and its key; None: plain HTTP."""
    certificate, key = listen.certificate, listen.private_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise DragomanError("expected both a certificate and its private key, found one of them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # without one, it would ask for it
    except OSError as error:  # includes ssl.SSLError
        raise DragomanError(
            f"{certificate}, {key}: expected a certificate and its key in PEM, without a password: "
            f"{error}"
        ) from error
    return context


@contextmanager
def listening(listen: ListenOptions) -> Iterator[socket.socket]:
    """Open a listening socket within the context, see `bind`."""
    bound = bind(listen)
    try:
        yield bound
    finally:
        bound.close()
        remove_path(listen)


def bind(listen: ListenOptions) -> socket.socket:
    """Open a listening socket."""
    if listen.unix_socket is not None:
        return _bind_path(listen.unix_socket)
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY. Otherwise the body of a response, sent
    # after its head, would wait 40 ms for the client's delayed acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listen.host, listen.port))
    except (OSError, TypeError, ValueError) as error:  # the last two: a name that is none
        bound.close()
        raise DragomanError(
            f"cannot listen on {shortened(listen.host, LONGEST_VALUE)}, port {listen.port}: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    return bound


def _bind_path(path: Path) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise DragomanError("unix_socket: expected a system with Unix sockets; use --port")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise DragomanError(f"{path}: expected a free name or a Unix socket, found a file")
        with _locked(path):
            _remove_unused(path)
            bound.bind(str(path))
            bound.listen()  # connections wait until bundles are loaded; other servers find it used
    except OSError as error:
        bound.close()
        raise DragomanError(f"cannot listen on {path}: {error.strerror or error}") from error
    except DragomanError:
        bound.close()
        raise
    return bound


def remove_path(listen: ListenOptions) -> None:
    """Remove the Unix socket of a server, unless another one listens on it."""
    if listen.unix_socket is not None:
        with suppress(OSError), _locked(listen.unix_socket):
            _remove_unused(listen.unix_socket)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other servers from replacing a Unix socket within the context."""
    import fcntl  # not on Windows

    # The file of the lock stays: were it removed, two servers could hold locks of the same name.
    with Path(f"{path}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server whose queue of connections is full listens, too
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except (FileNotFoundError, BlockingIOError):
            return


def url_of(bound: socket.socket, scheme: str) -> str:
    """Return the address of a listening socket as a URL; unix:PATH for a Unix socket."""
    address = bound.getsockname()
    if isinstance(address, str):
        return f"unix:{address}"
    host, port, *_ = address
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}"


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
    """Writes to the current `sys.stderr`, which may change."""

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
