"""What a server is told when it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..backends import check_threads
from ..decoding.options import DEFAULT_BATCH_SIZE


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How every bundle is run.

    Attributes:
        loops: batches that are decoded beside each other, over one copy of the weights
        threads: of each loop
        rows: the most in the batch of a loop: requests, times their beams
        waiting: the most outputs that wait to be decoded; further requests are refused
        max_new_tokens: the most that a request may ask for; None: see `engine.LONGEST_OUTPUT`
        backend: see `load`
    """

    loops: int = 1
    threads: int = 1
    rows: int = DEFAULT_BATCH_SIZE
    waiting: int = 256
    max_new_tokens: int | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """
    Attributes:
        engine: of every bundle
        idle_unload: a bundle that nobody has used for so many seconds is unloaded; None: never
        longest_request: seconds after which a request fails; a request may ask for less
        body_bytes: the most that the body of a request may have
        audio_seconds: the most that a recording may last
        keys: those that may use the server; none: everybody may
        log_texts: whether the texts of requests appear in logs
        watch_seconds: how often the directories of bundles are looked at
    """

    engine: EngineOptions = EngineOptions()
    idle_unload: float | None = None
    longest_request: float = 600.0
    body_bytes: int = 64 << 20
    audio_seconds: float = 2 * 3600.0
    keys: tuple[str, ...] = ()
    log_texts: bool = False
    watch_seconds: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """
    Attributes:
        certificate, private_key: files in PEM for TLS; None: plain HTTP
        drain_seconds: how long requests may take to end after the server was told to stop
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    private_key: Path | None = None
    drain_seconds: int = 30


def arrangement(loops: int | None, threads: int | None) -> tuple[int, int]:
    """Loops, and threads of each, that fill the cores; None: whatever does. A loop for each core is
    the default, since its one thread never waits for others.

    Raises:
        DragomanError: more threads in all than make sense.
    """
    of_process = getattr(os, "sched_getaffinity", None)
    cores = len(of_process(0)) if of_process else os.cpu_count() or 1
    if loops is None:
        loops = max(1, cores // (threads or 1))
    if threads is None:
        threads = max(1, cores // loops)
    check_threads(loops * threads)
    return loops, threads
