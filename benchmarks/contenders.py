"""What is compared: each contender loads in a process of its own and decodes when told to.

A process each, so that thread pools do not disturb each other, and memory and loading can be told
apart. They take turns: only one works at any time.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .machine import peak_memory_mb

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Source token ids and a number of new tokens -> generated token ids."""

Load = Callable[[Path, int], Generate]
"""A directory and a number of threads -> what decodes."""


def load_dragoman(directory: Path, threads: int) -> Generate:
    from dragoman.runtime import load

    model = load(directory, threads=threads)

    def generate(sources: list[list[int]], new_tokens: int) -> list[list[int]]:
        results = model.generate(
            sources, new_tokens, max_batch_size=len(sources), max_batch_tokens=1 << 30
        )
        return [list(result.tokens) for result in results]

    return generate


def load_ctranslate2(directory: Path, threads: int) -> Generate:
    from dragoman.benchmarks.peers.ctranslate2_translator import CTranslate2Peer

    return CTranslate2Peer.load(directory, threads).generate


@dataclass(frozen=True)
class Contender:
    name: str
    directory: Path
    load: Load

    @property
    def disk_mb(self) -> float:
        return sum(f.stat().st_size for f in self.directory.rglob("*") if f.is_file()) / 1e6


class Worker:
    """A contender in its own process."""

    def __init__(self, contender: Contender, threads: int) -> None:
        self.contender = contender
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, contender.load, contender.directory, threads), daemon=True
        )
        self._process.start()
        other.close()
        self.load_seconds: float = self._receive()

    def generate(self, sources: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float]:
        """Generated token ids, and the seconds it took."""
        self._connection.send((sources, new_tokens))
        tokens, seconds = self._receive()
        return tokens, seconds

    def close(self) -> float:
        """End the process; its peak memory in MB."""
        self._connection.send(None)
        peak: float = self._receive()
        self._process.join()
        return peak

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError as error:
            raise RuntimeError(f"{self.contender.name} ended unexpectedly") from error


def _serve(connection: Connection, load: Load, directory: Path, threads: int) -> None:
    # As deployed: some tools load torch merely because it is installed.
    sys.modules["torch"] = None  # type: ignore[assignment]
    started = time.perf_counter()
    generate = load(directory, threads)
    connection.send(time.perf_counter() - started)
    while (work := connection.recv()) is not None:
        started = time.perf_counter()
        tokens = generate(*work)
        connection.send((tokens, time.perf_counter() - started))
    connection.send(peak_memory_mb())
