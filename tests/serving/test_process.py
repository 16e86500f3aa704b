"""`dragoman serve` as a process: signals, TLS, mistakes."""

from __future__ import annotations

import datetime
import io
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dragoman import DragomanError
from dragoman.runtime.serving.options import ListenOptions
from dragoman.runtime.serving.process import bind, listening, notify_manager, remove_path

from ..cli.conftest import status_of
from .conftest import running

Bundles = Callable[[str], Path]


@contextmanager
def process(
    *arguments: object, python: str = "", environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server, and find its URL in its log.

    Args:
        python: what the process runs instead of the module `dragoman`
    """
    start = ["-c", python] if python else ["-m", "dragoman"]
    command = [sys.executable, *start, "serve", *map(str, arguments), "--port", "0"]
    environment = {**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            yield server, logged(server, "listening")["url"]
        finally:
            server.kill()


def logged(server: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """The next line of the log with this event."""
    assert server.stderr is not None
    return next(line for line in map(json.loads, server.stderr) if line["event"] == event)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_stopped_server_finishes_running_requests(
    bundle: Bundles, number: signal.Signals, status: int
) -> None:
    with process(bundle("letters"), "--workers", 1, "--threads", 1) as (server, url):
        body = {"source": "dragoman", "stream": True, "min_new_tokens": 20}
        with (
            httpx.Client() as client,
            client.stream("POST", f"{url}/v1/generate", json=body) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.send_signal(number)
            assert "event: end" in list(lines)
        assert server.wait(60) == status
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health/live")


@contextmanager
def uploading(url: str) -> Iterator[socket.socket]:
    """A connection with a request whose body the server waits for."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = "POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        yield connection


def test_the_time_to_drain_and_a_second_signal(bundle: Bundles) -> None:
    with process(bundle("letters"), "--drain-seconds", 0) as (server, url):
        with uploading(url) as connection, connection.makefile("rb") as answer:
            server.send_signal(signal.SIGTERM)
            assert answer.read().startswith(b"HTTP/1.1 503 ")
        assert logged(server, "request")["status"] == 503
        assert server.wait(60) == 0
    with process(bundle("letters"), "--drain-seconds", 600) as (server, url), uploading(url):
        server.send_signal(signal.SIGTERM)
        logged(server, "Shutting down")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 128 + signal.SIGTERM


STUCK = """
import runpy, threading
from dragoman.runtime.decoding.running_batch import RunningBatch
from dragoman.runtime.serving import process
process.END_SECONDS = 1
RunningBatch.step = lambda batch: threading.Event().wait()
runpy.run_module("dragoman", run_name="__main__", alter_sys=True)
"""


def test_threads_that_go_on_do_not_hold_the_process(bundle: Bundles) -> None:
    with process(bundle("letters"), "--drain-seconds", 0, python=STUCK) as (server, url):
        with ThreadPoolExecutor(1) as pool:
            body = {"source": "dragoman"}
            sent = pool.submit(httpx.post, f"{url}/v1/generate", json=body, timeout=60)
            while (
                'dragoman_rows_in_use{model="letters"} 1.0' not in httpx.get(f"{url}/metrics").text
            ):
                pass  # until it is decoded
            server.send_signal(signal.SIGTERM)
            assert sent.result().status_code == 503
        assert server.wait(60) == 0


def test_without_a_home(bundle: Bundles) -> None:
    """Nor an entry in the list of users, as in containers that run with any number."""
    nobody = "import os, runpy; os.getuid = lambda: 54_321"
    start = "runpy.run_module('dragoman', run_name='__main__', alter_sys=True)"
    with process(bundle("letters"), python=f"{nobody}; {start}", environment={}) as (_, url):
        answer = httpx.post(f"{url}/v1/generate", json={"source": "dragoman"})
        assert answer.status_code == 200


EARLY = """
import os, runpy, signal
from pathlib import Path
from dragoman.runtime.serving import process
create_app = process.create_app
def create(*arguments, **options):
    Path({file!r}).write_text("new-key")
    os.kill(os.getpid(), signal.{number})
    return create_app(*arguments, **options)
process.create_app = create
runpy.run_module("dragoman", run_name="__main__", alter_sys=True)
"""


def test_a_hangup_before_bundles_are_read_is_handled_later(bundle: Bundles, tmp_path: Path) -> None:
    (keys := tmp_path / "keys").write_text("old-key")
    python = EARLY.format(file=str(keys), number="SIGHUP")
    with process(bundle("letters"), "--api-key-file", keys, python=python) as (server, url):
        headers = {"Authorization": "Bearer new-key"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_a_server_that_is_stopped_before_bundles_are_read(bundle: Bundles, tmp_path: Path) -> None:
    python = EARLY.format(file=str(tmp_path / "keys"), number="SIGTERM")
    arguments = ["serve", str(bundle("letters")), "--unix-socket", str(tmp_path / "socket")]
    assert subprocess.run([sys.executable, "-c", python, *arguments], timeout=60).returncode == 0
    assert (tmp_path / "keys").exists() and not (tmp_path / "socket").exists()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return new_certificate(tmp_path)


def new_certificate(directory: Path) -> tuple[Path, Path]:
    """Write a certificate of this host and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = directory / "certificate.pem", directory / "key.pem"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_over_tls_with_keys_that_change(
    bundle: Bundles, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# those of the team\n\nsecret-key\n")
    options = ("--certificate", certificate[0], "--private-key", certificate[1])
    body = {"source": "dragoman"}
    with process(bundle("letters"), *options, "--api-key-file", keys) as (server, url):
        assert url.startswith("https://127.0.0.1:")
        route = f"{url}/v1/generate"

        def status(client: httpx.Client, key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return client.post(route, json=body, headers=headers).status_code

        def trusting() -> httpx.Client:
            return httpx.Client(verify=ssl.create_default_context(cafile=str(certificate[0])))

        with trusting() as client, trusting() as late:
            assert client.post(route, json=body).status_code == 401
            assert status(client, "secret-key") == 200
            keys.write_text("other-key\nthird-key\n")
            new_certificate(tmp_path)
            server.send_signal(signal.SIGHUP)
            assert logged(server, "API keys read again")["keys"] == 2
            assert logged(server, "certificate read again")["file"] == str(certificate[0])
            # The open connection goes on; who trusts the old certificate gets no new one.
            assert [status(client, key) for key in ("secret-key", "other-key")] == [401, 200]
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                late.post(route, json=body)
        with trusting() as client:
            keys.write_text("")
            certificate[1].write_text("no key")
            server.send_signal(signal.SIGHUP)
            assert "expected a key on a line" in logged(server, "API keys not read again")["error"]
            error = logged(server, "certificate not read again")["error"]
            assert "expected a certificate and its key in PEM" in error
            assert status(client, "third-key") == 200


def refused(*arguments: object) -> str:
    """The error of a command, which must be one line."""
    with redirect_stderr(io.StringIO()) as error:
        assert status_of(["serve", *map(str, arguments)]) == 2
    (line,) = error.getvalue().splitlines()
    return line


def test_mistakes_are_one_line(
    bundle: Bundles, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    letters, keys, locked = bundle("letters"), tmp_path / "empty", tmp_path / "locked.pem"
    keys.touch()
    key = serialization.load_pem_private_key(certificate[1].read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"password")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            ((tmp_path / "nothing",), "no such directory"),
            (
                (letters, "--port", port),
                f"cannot listen on 127.0.0.1, port {port}: Address already",
            ),
            ((letters, "--api-key-file", tmp_path / "none"), "expected a file of keys"),
            ((letters, "--api-key-file", keys), "expected a key on a line, found none"),
            ((letters, "--certificate", certificate[0]), "expected both a certificate and its"),
            (
                (letters, "--certificate", certificate[1], "--private-key", certificate[1]),
                "expected a certificate and its key in PEM",
            ),
            (
                (letters, "--certificate", certificate[0], "--private-key", locked),
                "expected a certificate and its key in PEM, without a password",
            ),
            ((letters, letters), "expected bundles of different names"),
            ((letters, "--workers", 1000, "--threads", 1000), "threads: expected 1 to"),
            ((letters, "--host", ""), "--host: expected a name or an address"),
            (
                (letters, "--unix-socket", tmp_path / "socket", "--port", 0),
                "--unix-socket: expected it without an address and port, found --port, too",
            ),
            ((letters, "--unix-socket", keys), f"{keys}: expected a free name or a Unix socket"),
            ((letters, "--unix-socket", tmp_path / ("x" * 200)), "path too long"),
            ((letters, "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
            ((letters, "--host", "é" * 300), f"cannot listen on {'é' * 42}..."),
        ):
            assert words in refused(*arguments)


@pytest.mark.parametrize("host", ["", " ", "a b", "127.0.0.1:80", "here:80", "[::1]", "http://x"])
def test_hosts_that_are_none(host: str) -> None:
    with pytest.raises(DragomanError, match=r"^host: expected a name or an address .*, found '"):
        ListenOptions(host=host)


@pytest.mark.parametrize("host", ["::", "::1", "fe80::1%eth0", "10.0.0.1", "a-b.example", "ä_b"])
def test_hosts(host: str) -> None:
    assert ListenOptions(host=host).host == host


def test_a_unix_socket(bundle: Bundles, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # left behind by a server that was killed
    listen = ListenOptions(unix_socket=path)
    with running({"letters": bundle("letters")}, listen) as (_, url):
        assert url == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            answer = client.post("http://x/v1/generate", json={"source": "dragoman"})
            assert answer.status_code == 200
        with pytest.raises(DragomanError, match=f"^cannot listen on {path}: Address already in"):
            bind(listen)
        assert path.is_socket()
    assert not path.exists()


def test_a_unix_socket_that_another_server_has_taken_over(tmp_path: Path) -> None:
    """While the first one drains; it then leaves the socket to the other."""
    listen = ListenOptions(unix_socket=tmp_path / "socket")
    with listening(listen) as first:
        first.close()
        with listening(listen) as second:
            second.listen()
            remove_path(listen)
            assert (tmp_path / "socket").is_socket()
    assert not (tmp_path / "socket").exists()


def test_a_unix_socket_of_a_server_that_is_still_loading(tmp_path: Path) -> None:
    """It listens from the beginning; connections wait until bundles are loaded."""
    path = tmp_path / "socket"
    listen = ListenOptions(unix_socket=path)
    with listening(listen), pytest.raises(DragomanError, match=f"^cannot listen on {path}: Addr"):
        bind(listen)
    assert not path.exists()


def test_one_of_many_servers_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen = ListenOptions(unix_socket=path)

    def bound(start: threading.Barrier) -> socket.socket | None:
        start.wait(60)
        with suppress(DragomanError):
            return bind(listen)
        return None

    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
            found = list(pool.map(bound, [threading.Barrier(8)] * 8))
            (winner,) = filter(None, found)
            with winner, socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            path.unlink()


@pytest.mark.parametrize("prefix", ["", "@"])
def test_a_service_manager_is_told_when_the_server_is_ready(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str
) -> None:
    """As systemd asks for it, by a path or an abstract name."""
    address = f"{prefix}{tmp_path / 'notify'}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind(address.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with running({"letters": bundle("letters")}, ListenOptions(port=0)) as (_, url):
            assert manager.recv(100) == b"READY=1"
            assert httpx.get(f"{url}/health/ready").status_code == 200
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket"])
def test_a_service_manager_that_does_not_listen(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify_manager("READY=1")
