"""Each contender loads and works in a separate process.

Thread pools then do not disturb each other, and memory and loading time can be attributed. Workers
take turns: only one of them works at any time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic

from ..machine import peak_memory_mb
from .children import Child, call_in, reason
from .contender import Contender, ContenderError, Entrant, Outcome, Perform, Work


@dataclass(frozen=True)
class Turn(Generic[Outcome]):
    """A work item done: once, or several times if it is short.

    Attributes:
        seconds: wall-clock time of the call, without the transfer between processes; of several
            calls the median, without the first one
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
        return call_in(contender.interpreter, contender.prepare, checkpoint, directory)
    except ContenderError as error:
        raise ContenderError(f"preparing: {error}") from error


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
        self.entrant = Entrant(contender.name, threads)
        self._child = Child(
            contender.interpreter,
            _serve,
            contender.load,
            directory,
            threads,
            contender.needs_torch,
        )
        self.load_seconds: float = self._child.receive()
        self.disk_mb = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 1e6

    def perform(self, work: Work, turn_seconds: float = 0) -> Turn[Outcome]:
        """Do a work item, and again until that has taken so long.

        After a pause, a processor needs a part of a second to reach its clock frequency and to fill
        its caches, which would count most against whoever is done first.
        """
        self._child.send((work, turn_seconds))
        outcome, seconds = self._child.receive()
        return Turn(outcome, seconds)

    def close(self) -> float:
        """End the process; returns its peak memory in MB of 10^6 bytes."""
        self._child.send(())
        peak: float = self._child.receive()
        self._child.wait()
        return peak

    def kill(self) -> None:
        """End the process at once, whatever it does; may be called again."""
        self._child.kill()


def _turn(
    perform: Perform[Work, Outcome], work: Work, turn_seconds: float
) -> tuple[Outcome, float]:
    """See `Worker.perform`."""
    seconds: list[float] = []
    started = time.perf_counter()
    while True:
        before = time.perf_counter()
        outcome = perform(work)
        now = time.perf_counter()
        seconds.append(now - before)
        if now - started >= turn_seconds:
            return outcome, statistics.median(seconds[1:] or seconds)


def _serve(
    connection: Connection,
    load: Callable[[Path, int], Perform[Any, Any]],
    directory: Path,
    threads: int,
    needs_torch: bool,
) -> None:
    """The worker's process. A request is the arguments of `perform`; an empty one ends it."""
    if not needs_torch:
        sys.modules["torch"] = None  # type: ignore[assignment] # see Contender.needs_torch
    stage = "loading"
    try:
        started = time.perf_counter()
        perform = load(directory, threads)
        connection.send((True, time.perf_counter() - started))
        stage = "working"
        while request := connection.recv():
            connection.send((True, _turn(perform, *request)))
        connection.send((True, peak_memory_mb()))
    except EOFError:  # whoever asked is gone
        return
    except Exception as error:
        connection.send((False, f"{stage}: {reason(error)}"))
