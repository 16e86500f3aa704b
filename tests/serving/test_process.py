"""`dragoman serve` as a process: signals, TLS, mistakes."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Bundles = Callable[[str], Path]


@contextmanager
def process(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server, and find its URL in its log."""
    command = [sys.executable, "-m", "dragoman", "serve", *map(str, arguments), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                if (event := json.loads(line))["event"] == "listening":
                    yield server, event["url"]
                    break
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_finishes_running_requests(
    bundle: Bundles, number: signal.Signals
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
        assert server.wait(60) == 128 + number  # as shells say it
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health/live")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
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
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_over_tls_with_a_key(
    bundle: Bundles, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# those of the team\n\nsecret-key\n")
    options = ("--certificate", certificate[0], "--private-key", certificate[1])
    with process(bundle("letters"), *options, "--api-key-file", keys) as (_, url):
        assert url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certificate[0]))
        with httpx.Client(verify=trusted) as client:
            body = {"source": "dragoman"}
            assert client.post(f"{url}/v1/generate", json=body).status_code == 401
            headers = {"Authorization": "Bearer secret-key"}
            answer = client.post(f"{url}/v1/generate", json=body, headers=headers)
            assert answer.status_code == 200


def refused(*arguments: object) -> str:
    """The error of a command, which must be one line."""
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "serve", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


def test_mistakes_are_one_line(
    bundle: Bundles, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    letters, keys = bundle("letters"), tmp_path / "empty"
    keys.touch()
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
            ((letters, letters), "expected bundles of different names"),
            ((letters, "--workers", 1000, "--threads", 1000), "threads: expected 1 to"),
            ((letters, "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        ):
            assert words in refused(*arguments)
