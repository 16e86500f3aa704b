"""Connections to Ray."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from dragoman import DragomanError
from dragoman.runtime.serving.ray.files import connected

pytestmark = pytest.mark.ray


@pytest.mark.usefixtures("cluster")
def test_a_local_cluster_has_only_a_local_address() -> None:
    (node,) = ray.nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"
    assert ray.cluster_resources()["CPU"] == 2


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_no_cluster_at_the_address() -> None:
    address = free_address()
    expected = f"^{re.escape(address)}: expected a Ray cluster there, found none: .*refused"
    with pytest.raises(DragomanError, match=expected), connected(address, 2):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1", "head:", ":6379", "ray://head:port"])
def test_invalid_addresses(address: str) -> None:
    expected = r"as in 10\.0\.0\.1:6379, found "
    with pytest.raises(DragomanError, match=expected), connected(address, 2):
        pass


def test_the_command_reports_it(bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "run-file", str(bundle), str(tmp_path / "in")]
    options = ["-o", str(tmp_path / "out"), "--address", free_address()]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "expected a Ray cluster there" in done.stderr
