"""The options of a server and its replicas."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, listed, nearest, shown
from dragoman.settings.fields import is_number

from ..backends import gpu_index
from ..format.known_answers import CHECKS, Check
from .clients import read_keys, read_proxies

MOST_DRAIN_SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of the engine of every model.

    Raises:
        DragomanError: a device is wrong or occurs twice, or the processor is one of several.
    """

    workers: int | None = None
    threads: int | None = None
    batch_size: int | None = None
    """`workers`, `threads` and `batch_size`: see `Arrangement`; None: see `arrangement`."""
    max_waiting: int = 256
    """Maximum outputs of a model that wait to be decoded; further requests are refused."""
    max_new_tokens: int | None = None
    """Maximum new tokens of an output; None: see `engine.LONGEST_OUTPUT`."""
    backend: str | None = None
    check: Check = "once"
    allow_fallback: bool = False
    """`backend`, `check` and `allow_fallback`: see `load`."""
    devices: tuple[str, ...] = ()
    """The devices of `load`, such as ("cuda:0", "cuda:1"): each has a copy of the weights and
    workers of its own; empty: the device that `load` selects."""

    def __post_init__(self) -> None:
        numbers = [gpu_index(device) for device in self.devices]
        if len(numbers) > 1 and None in numbers:
            raise DragomanError(
                f"device: expected cpu alone or GPUs, found {', '.join(self.devices)}"
            )
        for number, device in zip(numbers, self.devices, strict=True):
            if numbers.count(number) > 1:
                raise DragomanError(f"device: expected each GPU once, found {device} twice")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options and limits of a server."""

    engine: EngineOptions = EngineOptions()
    idle_unload: float | None = None
    """Idle seconds after which a model is unloaded; None: never."""
    timeout: float = 600.0
    """Seconds after which a request fails; a request may set a shorter timeout."""
    max_body_bytes: int = 64 << 20
    max_audio: float = 2 * 3600.0
    """Maximum seconds of audio of a request."""
    max_open_audio: float = 4 * 3600.0
    """Maximum seconds of audio of all requests that are read or decoded at once; further audio is
    refused."""
    api_keys: tuple[str, ...] = ()
    """Accepted API keys; empty: requests need no key."""
    log_texts: bool = False
    split_special_tokens: bool = True
    """Whether special tokens in texts are read as plain text, unless a request says otherwise."""
    greedy: bool = False
    """Whether speech is decoded once, with greedy search, where a request leaves it open;
    otherwise, see `speech.plan.transcription_defaults`."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server from a browser, such as "https://app.example"; "*":
    all; empty: none."""
    root_path: str = ""
    """Prefix of all paths, which a proxy puts before them, such as "/translator"."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose `X-Forwarded-For` says who the client is, in logs;
    "unix": peers of the Unix socket."""
    allow_token_ids: bool = False
    """Whether `/v1/embeddings` takes token ids; its clients may have those of another tokenizer."""
    watch_seconds: float = 1.0
    """Interval at which bundle directories are checked for changes."""

    def __post_init__(self) -> None:
        read_proxies(self.trusted_proxies)
        for origin in self.cors_origins:
            if origin not in ("*", "null") and not re.fullmatch(r"[\w+.-]+://[^/\s]+", origin):
                raise DragomanError(
                    f"cors_origin: expected * or an origin such as https://app.example, found "
                    f"{shown(origin)}"
                )
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII):
            raise DragomanError(
                "root_path: expected a path such as /translator, without a slash at its end, found "
                f"{shown(self.root_path)}"
            )


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Options of a server's socket, TLS and shutdown."""

    host: str = "127.0.0.1"
    port: int = 8000
    unix_socket: Path | None = None
    """Path to listen on instead of host and port."""
    api_key_file: Path | None = None
    """File of API keys, see `read_keys`; None: those of `ServerOptions`."""
    certificate: Path | None = None
    private_key: Path | None = None
    """`certificate` and `private_key`: PEM files for TLS; None: plain HTTP."""
    drain_seconds: int = 30
    """Time that running requests have to finish at shutdown, at most a day."""

    def __post_init__(self) -> None:
        if not _is_host(self.host):
            raise DragomanError(
                "host: expected a name or an address such as 0.0.0.0 or ::1, without scheme and "
                f"port, found {shown(self.host)}"
            )
        _check_drain(self.drain_seconds)


def _check_drain(seconds: Any) -> None:
    if not is_number(seconds) or not 0 <= seconds <= MOST_DRAIN_SECONDS:
        raise DragomanError(
            f"drain_seconds: expected 0 to {MOST_DRAIN_SECONDS} seconds, a day, found "
            f"{shown(seconds)}"
        )


def _is_host(text: str) -> bool:
    if ":" not in text:
        return re.fullmatch(r"[\w.-]+", text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Options of autoscaling the replicas of a server."""

    min_replicas: int = 1
    max_replicas: int = 4
    """`min_replicas` and `max_replicas`: bounds of the number of replicas."""
    target_ongoing_requests: float | None = None
    """Target number of running and waiting requests per replica; None: half the rows of its
    batches."""
    upscale_delay: float = 30.0
    downscale_delay: float = 600.0
    """`upscale_delay` and `downscale_delay`: seconds above or below the target before scaling."""
    health_seconds: float = 10.0
    """Seconds between health checks; a replica that fails three is replaced."""
    drain_seconds: float = 30.0
    """Time that the requests of a replica have to finish at shutdown, at most a day."""
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise DragomanError(
                "min_replicas, max_replicas: expected at least 0 and no fewer than that, found "
                f"{self.min_replicas} and {self.max_replicas}"
            )
        _check_drain(self.drain_seconds)


@dataclass(frozen=True)
class ApplicationOptions:
    """All options of a replicated server."""

    bundles: dict[str, Path]
    server: ServerOptions
    replicas: ReplicaOptions


def bundle_names(directories: Sequence[Path]) -> dict[str, Path]:
    """Name each bundle by its directory."""
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
        values: strings or numbers by the names of options of `dragoman serve` and fields of
            `ReplicaOptions`; `bundles` is a list of paths or a comma-separated string

    Raises:
        DragomanError: a name is unknown, a value has the wrong type, or `bundles` is missing.
    """
    unknown = values.keys() - READERS.keys()
    if unknown:
        names = ", ".join(READERS)
        raise DragomanError(
            f"unknown: {listed(unknown)}; expected any of {names}{nearest(unknown, READERS)}"
        )
    if not values.get("bundles"):
        raise DragomanError("bundles: expected paths of bundles, found none")
    read = {RENAMED.get(name, name): _read(name, value) for name, value in values.items()}

    engine = EngineOptions(**fields_of(EngineOptions, read))
    server = ServerOptions(engine=engine, **fields_of(ServerOptions, read))
    replicas = ReplicaOptions(**fields_of(ReplicaOptions, read))
    return ApplicationOptions(bundle_names(read["bundles"]), server, replicas)


def fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are fields of a dataclass."""
    return {f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values}


def _read(name: str, value: Any) -> Any:
    expected, convert = READERS[name]
    try:
        return convert(value)
    except (KeyError, TypeError, ValueError) as error:
        raise DragomanError(f"{name}: expected {expected}, found {shown(value)}") from error


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(value.split(",") if isinstance(value, str) else map(str, value))


def _paths(value: Any) -> list[Path]:
    return [Path(path) for path in (value.split(",") if isinstance(value, str) else value)]


def _integer(value: Any, *, least: int = 0) -> int:
    if isinstance(value, float | bool):
        raise TypeError
    number = int(value)
    if number < least:
        raise ValueError
    return number


def _number(value: Any, *, is_positive: bool = False) -> float:
    number = float(value)
    if isinstance(value, bool) or not 0 <= number < float("inf") or (is_positive and not number):
        raise ValueError
    return number


Reader = tuple[str, Callable[[Any], Any]]
"""What is expected, and a function that converts it or raises an error."""
INTEGER: Reader = ("an integer of at least 0", _integer)
POSITIVE_INTEGER: Reader = ("an integer of at least 1", partial(_integer, least=1))
NUMBER: Reader = ("a number of at least 0", _number)
POSITIVE_NUMBER: Reader = ("a number above 0", partial(_number, is_positive=True))
BOOLEAN: Reader = (
    "true or false",
    lambda value: {"true": True, "false": False}[str(value).lower()],
)

READERS: Mapping[str, Reader] = {
    "bundles": ("paths", _paths),
    "workers": POSITIVE_INTEGER,
    "threads": POSITIVE_INTEGER,
    "batch_size": POSITIVE_INTEGER,
    "max_waiting": POSITIVE_INTEGER,
    "max_new_tokens": POSITIVE_INTEGER,
    "max_body": ("megabytes, at least 1", lambda value: _integer(value, least=1) << 20),
    "max_audio": POSITIVE_NUMBER,
    "max_open_audio": POSITIVE_NUMBER,
    "timeout": POSITIVE_NUMBER,
    "idle_unload": POSITIVE_NUMBER,
    "backend": ("a name", str),
    "device": ("names of devices", _texts),
    "check": (f"one of {', '.join(CHECKS)}", lambda value: CHECKS[CHECKS.index(value)]),
    "allow_fallback": BOOLEAN,
    "api_key_file": ("the path of a file", lambda value: read_keys(Path(value))),
    "log_texts": BOOLEAN,
    "split_special_tokens": BOOLEAN,
    "greedy": BOOLEAN,
    "cors_origin": ("origins", _texts),
    "root_path": ("a path", str),
    "trusted_proxies": ("addresses or networks", _texts),
    "allow_token_ids": BOOLEAN,
    "min_replicas": INTEGER,
    "max_replicas": POSITIVE_INTEGER,
    "target_ongoing_requests": POSITIVE_NUMBER,
    "upscale_delay": NUMBER,
    "downscale_delay": NUMBER,
    "health_seconds": POSITIVE_NUMBER,
    "drain_seconds": NUMBER,
    "gpus": NUMBER,
}
RENAMED = {
    "max_body": "max_body_bytes",
    "api_key_file": "api_keys",
    "cors_origin": "cors_origins",
    "device": "devices",
}
"""Options whose fields hold something else than the option: bytes, keys, several values."""
