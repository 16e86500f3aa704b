"""A Triton Inference Server from `nvidia-pytriton`, with a repository of `dragoman deploy triton`.

Only packages of Triton's environment are imported here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from dragoman.runtime import Model, load

STARTED = "Started Metrics Service"
"""The last service to start: that of HTTP logs its own start before it listens."""


class Triton(NamedTuple):
    """The addresses of a server, with port."""

    grpc: str
    http: str


@pytest.fixture(scope="session")
def bundles() -> Path:
    return Path(os.environ["DRAGOMAN_BUNDLES"]).resolve()


@pytest.fixture(scope="session")
def model(bundles: Path) -> Callable[[str], Model]:
    """The model that the server is compared with."""
    loaded: dict[str, Model] = {}

    def model(name: str) -> Model:
        if name not in loaded:
            loaded[name] = load(bundles / name, threads=1)
        return loaded[name]

    return model


@pytest.fixture(scope="session")
def triton(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """Serves `letters`, also as `g2p-en`; the same as `letters-once`, without streaming; and
    `vectors`. It must end by itself when it is told to."""
    directory = tmp_path_factory.mktemp("triton")
    names = [word for name in ("letters", "g2p-en", "vectors") for word in ("--name", name)]
    letters, vectors = bundles / "letters", bundles / "vectors"
    _deploy(directory / "streaming", letters, letters, vectors, *names)
    once = ("--no-streaming", "--link", "--name", "letters-once")
    _deploy(directory / "once", bundles / "letters", *once)
    grpc, http, metrics = _free_ports(3)
    root = _pytriton()
    command = [
        str(root / "tritonserver" / "bin" / "tritonserver"),
        *("--model-repository", str(directory / "streaming")),
        *("--model-repository", str(directory / "once")),
        *("--backend-directory", str(_backends(root, directory))),
        *("--grpc-port", str(grpc), "--http-port", str(http), "--metrics-port", str(metrics)),
    ]
    server = subprocess.Popen(
        command,
        env=_environment(root),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert server.stderr is not None
    log = _Log(server.stderr)
    log.start()
    try:
        assert log.started.wait(120) and server.poll() is None, "\n".join(log.lines)
        yield Triton(f"127.0.0.1:{grpc}", f"127.0.0.1:{http}")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, "\n".join(log.lines)
    finally:
        server.kill()
        server.wait()
        log.join()
        server.stderr.close()


class _Log(threading.Thread):
    """Reads what a server writes, to its end."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.lines: list[str] = []
        self.started = threading.Event()

    def run(self) -> None:
        for line in self._stream:
            self.lines.append(line.rstrip())
            if STARTED in line:
                self.started.set()
        self.started.set()  # it has ended


def _deploy(directory: Path, *arguments: object) -> None:
    words = [*map(str, arguments), "-o", str(directory), "--workers", "2", "--threads", "1"]
    subprocess.run([sys.executable, "-m", "dragoman", "deploy", "triton", *words], check=True)


def _pytriton() -> Path:
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _backends(root: Path, directory: Path) -> Path:
    """The Python backend, with the stub of this Python."""
    backends = directory / "backends"
    shutil.copytree(root / "tritonserver" / "backends" / "python", backends / "python")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "tritonserver" / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, backends / "python")
    return backends


def _environment(root: Path) -> dict[str, str]:
    """The stub runs with the packages of this environment."""
    paths = [path for path in sys.path if path and Path(path).is_dir()]
    libraries = [str(root.parent / "nvidia_pytriton.libs"), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
