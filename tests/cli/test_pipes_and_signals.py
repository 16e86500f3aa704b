"""As a process among others: closed pipes, a full disk, Ctrl-C. Never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, CompletedProcess

import pytest

Outcome = CompletedProcess[str]
Spawn = Callable[..., Outcome]


def popen(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_closed_pipe(bundle: Path, command: str) -> None:
    """As `| head -1`: our end of the pipe is closed before anything is written."""
    texts = ["need", "a"] if command == "run" else ["--json"]
    with popen(command, bundle, *texts) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_pipe_closed_after_a_line(bundle: Path) -> None:
    with popen("run", bundle, "--threads", 1, "--max-new-tokens", 1) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"need\n")
        process.stdin.flush()
        assert process.stdout.readline().strip()  # answered while the input is still open
        process.stdout.close()
        process.stdin.write(b"need\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_control_c_while_waiting_for_a_line(bundle: Path) -> None:
    with popen("run", bundle, "--threads", 1) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"need\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().split(b"\n") in (
            [b"", b"Interrupted.", b""],  # click ends the line of the ^C first
            [b"Interrupted.", b""],
        )
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("name", "status", "messages"), [("SIGINT", 130, ["Interrupted."]), ("SIGTERM", 143, [])]
)
def test_a_signal_in_the_middle_of_a_build_leaves_nothing(
    spawn: Spawn, checkpoint: Path, tmp_path: Path, name: str, status: int, messages: list[str]
) -> None:
    """The files are written and being checked when the signal comes."""
    prelude = f"""
import os, signal
import dragoman.export.neutral_bundle as b
def interrupted(path, name):
    assert path.exists()
    os.kill(os.getpid(), signal.{name})
    raise SystemExit("not interrupted")
b.check_file = interrupted
"""
    outcome = spawn("build", checkpoint, "-o", tmp_path / "out", prelude=prelude)
    assert outcome.returncode == status
    assert outcome.stderr.split() == messages
    assert outcome.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
@pytest.mark.parametrize("command", ["run", "inspect"])
def test_nowhere_to_write_the_output(spawn: Spawn, bundle: Path, command: str) -> None:
    texts = ["need"] if command == "run" else []
    outcome = spawn(command, bundle, *texts, stdout=Path("/dev/full"))
    assert outcome.returncode == 2
    assert outcome.stderr == "Error: No space left on device\n"


def test_standard_input_that_is_closed(bundle: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "run", str(bundle)]
    closing = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(closing, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_argument_that_is_not_utf_8(bundle: Path) -> None:
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"dragoman", b"run", bytes(bundle), b"n\xff", b"need"],
        capture_output=True,
    )
    assert done.returncode == 1
    first, second, end = done.stdout.split(b"\n")
    assert (first, end) == (b"", b"") and second
    (message,) = done.stderr.splitlines()
    assert message.startswith(b"line 1: ")
