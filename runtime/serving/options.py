"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How every bundle is run.

    Attributes:
        loops, threads, rows: see `Arrangement`; None: see `arrangement`
        waiting: the most outputs that wait to be decoded; further requests are refused
        max_new_tokens: the most that a request may ask for; None: see `engine.LONGEST_OUTPUT`
        backend: see `load`
    """

    loops: int | None = None
    threads: int | None = None
    rows: int | None = None
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
