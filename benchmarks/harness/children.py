"""Functions that run in a process of some interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from dragoman.errors import DragomanError

from .contender import ContenderError
from .interpreter import HERE, Interpreter

Arguments = TypeVarTuple("Arguments")
Returned = TypeVar("Returned")

BENCHMARKS = Path(__file__).parents[1]


class Child:
    """A function that runs in a process of its own and answers over a connection.

    An answer is a pair: True and a value, or False and the reason of a failure, after which the
    process ends.

    Args:
        function: of a module that the interpreter can import; its first argument is the connection
        arguments: picklable; whoever unpickles them imports what they are made of
    """

    def __init__(
        self,
        interpreter: Interpreter,
        function: Callable[[Connection, *Arguments], None],
        *arguments: *Arguments,
    ) -> None:
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [
                *(str(interpreter.executable), str(BENCHMARKS / "harness" / "child.py")),
                *(str(theirs.fileno()), str(interpreter.package), str(BENCHMARKS)),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        same = interpreter.executable == HERE.executable
        self.send(sys.path if same else [])
        self.send((function, arguments))

    def send(self, message: Any) -> None:
        """Raises ContenderError if the process has ended."""
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def receive(self) -> Any:
        """The next answer.

        Raises:
            ContenderError: it is a failure, or the process has ended.
        """
        try:
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if not succeeded:
            self._process.wait()
            raise ContenderError(answer)
        return answer

    def wait(self) -> None:
        """Until the process ends."""
        self._process.wait()

    def kill(self) -> None:
        """End the process at once, whatever it does; may be called again."""
        self._process.kill()
        self._process.wait()

    def _ended(self) -> ContenderError:
        status = self._process.wait()
        return ContenderError(f"its process ended unexpectedly, status {status}")


def call_in(
    interpreter: Interpreter,
    function: Callable[[*Arguments], Returned],
    *arguments: *Arguments,
) -> Returned:
    """Call a function in a process that ends afterwards and gives its memory back.

    Raises:
        ContenderError: the function failed, for whatever reason.
    """
    child = Child(interpreter, _answer, function, arguments)
    try:
        returned: Returned = child.receive()
        child.wait()
    finally:
        child.kill()
    return returned


def reason(error: Exception) -> str:
    """Why something failed, on one line."""
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
