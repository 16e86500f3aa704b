"""As a process among others: closed pipes, a full disk, Ctrl-C. Never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

import pytest

from dragoman.runtime import read_bundle

Outcome = CompletedProcess[str]
Spawn = Callable[..., Outcome]

NO_SPACE = "Error: No space left on device (standard output)\n"


def popen(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


@pytest.mark.parametrize("words", [["run", "need", "a"], ["inspect", "--json"], ["inspect"]])
def test_a_closed_pipe(bundle: Path, words: list[str]) -> None:
    """As `| head -1`: our end of the pipe is closed before anything is written."""
    command, *texts = words
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
    ("name", "status", "messages"),
    [("SIGINT", 130, ["Interrupted."]), ("SIGTERM", 143, []), ("SIGHUP", 129, [])],
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


def test_signals_while_it_cleans_up(spawn: Spawn, checkpoint: Path, tmp_path: Path) -> None:
    """The first comes as the neutral graphs are removed; the others, as what remains is."""
    prelude = """
import os, shutil, signal
rmtree = shutil.rmtree
def interrupted(path, *more, **options):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if ".out" in str(path) else ():
        os.kill(os.getpid(), number)
    rmtree(path, *more, **options)
shutil.rmtree = interrupted
"""
    outcome = spawn("build", checkpoint, "-o", tmp_path / "out", "--limit", 1, prelude=prelude)
    assert (outcome.returncode, outcome.stderr) == (143, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "raised", "status", "message"),
    [
        ("rich.console", "KeyboardInterrupt", 130, "Interrupted."),
        ("rich.console", "MemoryError", 2, "Error: out of memory"),
        ("dragoman.cli.inspect", "MemoryError('for 3 GB')", 2, "Error: out of memory: for 3 GB"),
    ],
)
def test_an_end_while_modules_are_imported(
    spawn: Spawn, bundle: Path, name: str, raised: str, status: int, message: str
) -> None:
    prelude = f"""
class Finder:
    def find_spec(self, name, *more):
        if name == {name!r}:
            raise {raised}
sys.meta_path.insert(0, Finder())
"""
    outcome = spawn("inspect", bundle, prelude=prelude)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (status, "", f"{message}\n")


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_standard_output_that_is_closed(bundle: Path, command: str) -> None:
    texts = ["need"] if command == "run" else []
    words = [sys.executable, "-m", "dragoman", command, str(bundle), *texts]
    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *words], stderr=PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
@pytest.mark.parametrize("command", ["run", "inspect"])
def test_nowhere_to_write_the_output(spawn: Spawn, bundle: Path, command: str) -> None:
    texts = ["need"] if command == "run" else []
    outcome = spawn(command, bundle, *texts, stdout=Path("/dev/full"))
    assert outcome.returncode == 2
    assert outcome.stderr == NO_SPACE


CLOSED = "import os; end, pipe = os.pipe(); os.close(end); os.dup2(pipe, 1)"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [({"prelude": CLOSED}, 141, ""), ({"stdout": Path("/dev/full")}, 2, NO_SPACE)],
)
def test_a_build_is_kept_without_its_output(
    spawn: Spawn,
    checkpoint: Path,
    tmp_path: Path,
    options: dict[str, Any],
    status: int,
    message: str,
) -> None:
    outcome = spawn("build", checkpoint, "-o", tmp_path / "out", "--limit", 1, **options)
    assert (outcome.returncode, outcome.stderr) == (status, message)
    read_bundle(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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
