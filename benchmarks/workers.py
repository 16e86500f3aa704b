"""Each contender loads in a process of its own and decodes when told to.

A process each, so that thread pools do not disturb each other, and memory and loading can be told
apart. They take turns: only one works at any time.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError

from .contenders import Contender, Load
from .machine import peak_memory_mb


class ContenderError(DragomanError):
    """A contender failed; the message is the reason alone."""


def prepare(contender: Contender, source: Path, directory: Path) -> Path:
    """Write the checkpoint in the contender's form, in a process that ends afterwards.

    Returns:
        the directory to load

    Raises:
        ContenderError: whatever went wrong.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        try:
            return executor.submit(contender.prepare, source, directory).result()
        except BrokenProcessPool as error:
            raise ContenderError("preparing: its process ended unexpectedly") from error
        except Exception as error:
            raise ContenderError(f"preparing: {_reason(error)}") from error


class Worker:
    """A contender in its own process.

    Raises:
        ContenderError: on construction and by `generate` and `close`, whatever went wrong.
    """

    def __init__(self, contender: Contender, directory: Path, threads: int) -> None:
        self.name = contender.name
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

    def generate(self, sources: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float]:
        """Generated token ids, and the seconds it took."""
        self._send((sources, new_tokens))
        tokens, seconds = self._receive()
        if {len(row) for row in tokens} != {new_tokens}:
            self.kill()
            raise ContenderError(f"decoding: expected {new_tokens} new tokens of every sequence")
        return tokens, seconds

    def close(self) -> float:
        """End the process; its peak memory in MB."""
        self._send(None)
        peak: float = self._receive()
        self._process.join()
        return peak

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _send(self, work: object) -> None:
        try:
            self._connection.send(work)
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> Any:
        try:
            good, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if not good:
            self._process.join()
            raise ContenderError(value)
        return value

    def _ended(self) -> ContenderError:
        self._process.join()
        return ContenderError(f"its process ended unexpectedly, status {self._process.exitcode}")


def _serve(
    connection: Connection, load: Load, directory: Path, threads: int, needs_torch: bool
) -> None:
    if not needs_torch:
        # As deployed: some tools load torch merely because it is installed.
        sys.modules["torch"] = None  # type: ignore[assignment]
    doing = "loading"
    try:
        started = time.perf_counter()
        generate = load(directory, threads)
        connection.send((True, time.perf_counter() - started))
        doing = "decoding"
        while (work := connection.recv()) is not None:
            started = time.perf_counter()
            tokens = generate(*work)
            connection.send((True, (tokens, time.perf_counter() - started)))
        connection.send((True, peak_memory_mb()))
    except Exception as error:
        connection.send((False, f"{doing}: {_reason(error)}"))


def _reason(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, DragomanError):
        return message
    return f"{type(error).__name__}: {message[:300]}"
