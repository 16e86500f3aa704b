"""Runs functions in processes of their own, also in other environments and source trees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import dragoman
from dragoman.errors import DragomanError

Arguments = TypeVarTuple("Arguments")
Returned = TypeVar("Returned")

BENCHMARKS = Path(__file__).parents[1]


class ProcessError(DragomanError):
    """A function failed in its process; the message is the reason."""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, and the source tree of Dragoman that it imports."""

    executable: Path
    """Interpreter of an environment with numpy and the libraries of the function; Dragoman need not
    be installed."""
    package: Path
    """Folder of the package `dragoman`; `dragoman.benchmarks` is always that of this process."""

    @classmethod
    def of_tree(cls, tree: Path) -> Interpreter:
        """Return this Python with the Dragoman of another source tree."""
        package = tree.absolute() / "src" / "dragoman"
        if not (package / "__init__.py").is_file():
            raise DragomanError(f"expected a source tree with src/dragoman, found {tree}")
        return cls(HERE.executable, package)

    @classmethod
    def of_environment(cls, executable: Path) -> Interpreter:
        """Return this Dragoman in another environment, given its Python."""
        if not executable.is_file():
            raise DragomanError(f"expected the Python of an environment, found {executable}")
        return cls(executable.absolute(), HERE.package)


HERE = Interpreter(Path(sys.executable), Path(dragoman.__file__).parent)


class Child:
    """A function of an importable module that runs in a process and answers over a connection.

    The connection is its first argument. An answer is a pair: True and a value, or False and the
    reason of a failure, after which the process ends.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        function: Callable[[Connection, *Arguments], None],
        *arguments: *Arguments,
    ) -> None:
        self._connection, theirs = Pipe()
        number, entry = theirs.fileno(), Path(__file__).with_name("child.py")
        folders = str(interpreter.package), str(BENCHMARKS)
        command = [str(interpreter.executable), str(entry), str(number), *folders]
        self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        theirs.close()
        self.send(sys.path if interpreter.executable == HERE.executable else [])
        self.send((function, arguments))

    def send(self, message: Any) -> None:
        """Send a message to the function; raise ProcessError if the process has ended."""
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def receive(self) -> Any:
        """Return the next answer; raise ProcessError if it is a failure or the process ended."""
        try:
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if not succeeded:
            self._process.wait()
            raise ProcessError(answer)
        return answer

    def wait(self) -> None:
        """Wait until the process ends."""
        self._process.wait()

    def kill(self) -> None:
        """End the process at once; may be called again."""
        self._process.kill()
        self._process.wait()

    def _ended(self) -> ProcessError:
        return ProcessError(f"its process ended unexpectedly, status {self._process.wait()}")


def call_in(
    interpreter: Interpreter, function: Callable[[*Arguments], Returned], *arguments: *Arguments
) -> Returned:
    """Call a function in a process that then ends; raise ProcessError if it fails."""
    child = Child(interpreter, _answer, function, arguments)
    try:
        returned: Returned = child.receive()
        child.wait()
    finally:
        child.kill()
    return returned


def reason(error: Exception) -> str:
    """Return why something failed, on one line."""
    message = " ".join(str(error).split())
    if isinstance(error, DragomanError):
        return message
    return f"{type(error).__name__}: {message[:300]}"


def _answer(
    connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    try:
        connection.send((True, function(*arguments)))
    except Exception as error:
        connection.send((False, reason(error)))
