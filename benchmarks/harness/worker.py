"""Each contender loads and works in a separate process.

Thread pools then do not disturb each other, and memory and loading time can be attributed. Workers
take turns: only one of them works at any time.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic

from dragoman.errors import DragomanError

from ..machine import peak_memory_mb
from .contender import Contender, Outcome, Perform, Work
from .process import in_own_process


class ContenderError(DragomanError):
    """A contender failed; the message is the reason, without the contender's name."""


@dataclass(frozen=True)
class Turn(Generic[Outcome]):
    """A work item done once.

    Attributes:
        seconds: wall-clock time of the call, without the transfer between processes
    """

    outcome: Outcome
    seconds: float


def prepare(contender: Contender[Work, Outcome], checkpoint: Path, directory: Path) -> Path:
    """Convert the checkpoint for a contender, in a process that ends afterwards.

    Args:
        directory: a path that does not exist yet

    Returns:
        the directory to load

    Raises:
        ContenderError: the preparation failed, for whatever reason.
    """
    try:
        return in_own_process(contender.prepare, checkpoint, directory)
    except BrokenProcessPool as error:
        raise ContenderError("preparing: its process ended unexpectedly") from error
    except Exception as error:
        raise ContenderError(f"preparing: {_reason(error)}") from error


class Worker(Generic[Work, Outcome]):
    """A contender, loaded in a separate process.

    The constructor, `perform` and `close` raise ContenderError if the contender fails, for whatever
    reason.

    Attributes:
        load_seconds: from an interpreter with the standard library to a loaded model, the
            contender's imports included
        disk_mb: all files in the directory, in MB of 10^6 bytes
    """

    def __init__(self, contender: Contender[Work, Outcome], directory: Path, threads: int) -> None:
        self.contender = contender
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(other, contender.load, directory, threads, contender.needs_torch),
            daemon=True,
        )
        self._process.start()
        other.close()
        self.load_seconds: float = self._receive()
        self.disk_mb = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 1e6

    def perform(self, work: Work) -> Turn[Outcome]:
        """Do a work item once."""
        self._send((work,))
        outcome, seconds = self._receive()
        return Turn(outcome, seconds)

    def close(self) -> float:
        """End the process; returns its peak memory in MB of 10^6 bytes."""
        self._send(())
        peak: float = self._receive()
        self._process.join()
        return peak

    def kill(self) -> None:
        """End the process at once, whatever it does; may be called again."""
        self._process.kill()
        self._process.join()

    def _send(self, request: tuple[Work, ...]) -> None:
        try:
            self._connection.send(request)
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> Any:
        try:
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if not succeeded:
            self._process.join()
            raise ContenderError(answer)
        return answer

    def _ended(self) -> ContenderError:
        self._process.join()
        return ContenderError(f"its process ended unexpectedly, status {self._process.exitcode}")


def _serve(
    connection: Connection,
    load: Callable[[Path, int], Perform[Any, Any]],
    directory: Path,
    threads: int,
    needs_torch: bool,
) -> None:
    """The worker's process. A request is a tuple of one work item; the empty one ends it."""
    if not needs_torch:
        sys.modules["torch"] = None  # type: ignore[assignment] # see Contender.needs_torch
    stage = "loading"
    try:
        started = time.perf_counter()
        perform = load(directory, threads)
        connection.send((True, time.perf_counter() - started))
        stage = "working"
        while request := connection.recv():
            (work,) = request
            started = time.perf_counter()
            outcome = perform(work)
            connection.send((True, (outcome, time.perf_counter() - started)))
        connection.send((True, peak_memory_mb()))
    except Exception as error:
        connection.send((False, f"{stage}: {_reason(error)}"))


def _reason(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, DragomanError):
        return message
    return f"{type(error).__name__}: {message[:300]}"
