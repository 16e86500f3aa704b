"""The options of a server and its replicas, and their parser."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError

from .api_keys import read_keys


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of the engine of every model.

    Attributes:
        workers, threads, batch_size: see `Arrangement`; None: see `arrangement`
        max_waiting: maximum outputs of a model that wait to be decoded; further requests are
            refused
        max_new_tokens: maximum new tokens of an output; None: see `engine.LONGEST_OUTPUT`
        backend: see `load`
    """

    workers: int | None = None
    threads: int | None = None
    batch_size: int | None = None
    max_waiting: int = 256
    max_new_tokens: int | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options and limits of a server.

    Attributes:
        engine: options of the engine of every model
        idle_unload: idle seconds after which a model is unloaded; None: never
        timeout: seconds after which a request fails; a request may set a shorter timeout
        max_body_bytes: maximum size of a request body
        max_audio: maximum length of a recording, in seconds
        api_keys: accepted API keys; empty: requests need no key
        log_texts: whether logs show the bodies of requests
        watch_seconds: interval at which bundle directories are checked for changes
    """

    engine: EngineOptions = EngineOptions()
    idle_unload: float | None = None
    timeout: float = 600.0
    max_body_bytes: int = 64 << 20
    max_audio: float = 2 * 3600.0
    api_keys: tuple[str, ...] = ()
    log_texts: bool = False
    watch_seconds: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Options of a server's socket, TLS and shutdown.

    Attributes:
        certificate, private_key: PEM files for TLS; None: plain HTTP
        drain_seconds: time that running requests have to finish at shutdown
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    private_key: Path | None = None
    drain_seconds: int = 30


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Options of autoscaling the replicas of a server.

    Attributes:
        min_replicas, max_replicas: bounds of the number of replicas
        target_ongoing_requests: target number of running and waiting requests per replica; None:
            half the rows of its batches
        upscale_delay, downscale_delay: seconds above or below the target before scaling
        health_seconds: seconds between health checks; a replica that fails three is replaced
        drain_seconds: time that the requests of a replica have to finish at shutdown
        gpus: GPUs per replica

    Raises:
        DragomanError: options contradict each other.
    """

    min_replicas: int = 1
    max_replicas: int = 4
    target_ongoing_requests: float | None = None
    upscale_delay: float = 30.0
    downscale_delay: float = 600.0
    health_seconds: float = 10.0
    drain_seconds: float = 30.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise DragomanError(
                "min_replicas, max_replicas: expected at least 0 and no fewer than that, found "
                f"{self.min_replicas} and {self.max_replicas}"
            )


@dataclass(frozen=True)
class ApplicationOptions:
    """All options of a replicated server.

    Attributes:
        bundles: bundle directories by model name
    """

    bundles: dict[str, Path]
    server: ServerOptions
    replicas: ReplicaOptions


def bundle_names(directories: Sequence[Path]) -> dict[str, Path]:
    """Name each bundle by its directory.

    Raises:
        DragomanError: two bundles have the same name.
    """
    names: dict[str, Path] = {}
    for directory in directories:
        name = directory.resolve().name
        if name in names:
            raise DragomanError(
                f"expected bundles of different names, found {names[name]} and {directory}"
            )
        names[name] = directory
    return names


def read_options(values: Mapping[str, Any]) -> ApplicationOptions:
    """Parse options from plain values of command lines or configuration files.

    Args:
        values: strings or numbers by name; names are options of `dragoman serve` and fields of
            `ReplicaOptions`; `bundles` is a list of paths or a comma-separated string

    Raises:
        DragomanError: a name is unknown, a value has the wrong type, or `bundles` is missing.
    """
    unknown = sorted(values.keys() - READERS.keys())
    if unknown:
        raise DragomanError(
            f"unknown: {', '.join(unknown):.200}; expected any of {', '.join(READERS)}"
        )
    if not values.get("bundles"):
        raise DragomanError("bundles: expected paths of bundles, found none")
    read = {RENAMED.get(name, name): _read(name, value) for name, value in values.items()}

    def options_of(kind: type) -> dict[str, Any]:
        return {f.name: read[f.name] for f in dataclasses.fields(kind) if f.name in read}

    engine = EngineOptions(**options_of(EngineOptions))
    server = ServerOptions(engine=engine, **options_of(ServerOptions))
    replicas = ReplicaOptions(**options_of(ReplicaOptions))
    return ApplicationOptions(bundle_names(read["bundles"]), server, replicas)


def _read(name: str, value: Any) -> Any:
    expected, convert = READERS[name]
    try:
        return convert(value)
    except (KeyError, TypeError, ValueError) as error:
        raise DragomanError(f"{name}: expected {expected}, found {value!r:.80}") from error


def _paths(value: Any) -> list[Path]:
    paths = value.split(",") if isinstance(value, str) else value
    return [Path(path) for path in paths]


def _integer(value: Any) -> int:
    if isinstance(value, float | bool):
        raise TypeError
    number = int(value)
    if number < 0:
        raise ValueError
    return number


def _positive_integer(value: Any) -> int:
    number = _integer(value)
    if number < 1:
        raise ValueError
    return number


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not 0 <= number < float("inf"):
        raise ValueError
    return number


def _positive_number(value: Any) -> float:
    number = _number(value)
    if number == 0:
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


Reader = tuple[str, Callable[[Any], Any]]
"""What is expected, and a function that converts it or raises an error."""
INTEGER: Reader = ("an integer of at least 0", _integer)
POSITIVE_INTEGER: Reader = ("an integer of at least 1", _positive_integer)
NUMBER: Reader = ("a number of at least 0", _number)
POSITIVE_NUMBER: Reader = ("a number above 0", _positive_number)

READERS: Mapping[str, Reader] = {
    "bundles": ("paths", _paths),
    "workers": POSITIVE_INTEGER,
    "threads": POSITIVE_INTEGER,
    "batch_size": POSITIVE_INTEGER,
    "max_waiting": POSITIVE_INTEGER,
    "max_new_tokens": POSITIVE_INTEGER,
    "max_body": ("megabytes, at least 1", lambda value: _positive_integer(value) << 20),
    "max_audio": POSITIVE_NUMBER,
    "timeout": POSITIVE_NUMBER,
    "idle_unload": POSITIVE_NUMBER,
    "backend": ("a name", str),
    "api_key_file": ("the path of a file", lambda value: read_keys(Path(value))),
    "log_texts": ("true or false", _boolean),
    "min_replicas": INTEGER,
    "max_replicas": POSITIVE_INTEGER,
    "target_ongoing_requests": POSITIVE_NUMBER,
    "upscale_delay": NUMBER,
    "downscale_delay": NUMBER,
    "health_seconds": POSITIVE_NUMBER,
    "drain_seconds": NUMBER,
    "gpus": NUMBER,
}
RENAMED = {"max_body": "max_body_bytes", "api_key_file": "api_keys"}
"""Options whose fields hold something else than the option: bytes, and the keys themselves."""
