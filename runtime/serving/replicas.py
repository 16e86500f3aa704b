"""What a server of several replicas is told when it starts, also as plain values, as files of
settings and other command lines have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError

from .hosts import names_of
from .keys import read_keys
from .options import EngineOptions, ServerOptions


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many processes answer requests, and what each of them has.

    Attributes:
        min_replicas, max_replicas: how many there are, by how many requests there are
        target_ongoing_requests: for each replica, being decoded or waiting: more let replicas be
            added, fewer removed. None: half the rows of its batches
        upscale_delay, downscale_delay: seconds that this must last
        health_seconds: how often a replica is asked whether it is ready; after three times without
            a yes it is replaced
        drain_seconds: that requests may take to end in a replica which is removed
        gpus: of each replica

    Raises:
        DragomanError: numbers that contradict each other.
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
class Arguments:
    """All that `arguments` reads.

    Attributes:
        bundles: their directories, by name
    """

    bundles: dict[str, Path]
    server: ServerOptions
    replicas: Replicas


def arguments(values: Mapping[str, Any]) -> Arguments:
    """
    Args:
        values: texts or numbers; `bundles` is a list of paths, or a text of paths with commas
            between them, the others are called as the options of `dragoman serve` and the fields of
            `Replicas`

    Raises:
        DragomanError: a name is unknown, a value is of another kind, or `bundles` is missing.
    """
    unknown = sorted(values.keys() - KINDS.keys())
    if unknown:
        raise DragomanError(
            f"unknown: {', '.join(unknown):.200}; expected any of {', '.join(KINDS)}"
        )
    if not values.get("bundles"):
        raise DragomanError("bundles: expected paths of bundles, found none")
    read = {name: _read(name, value) for name, value in values.items()}

    def given(**names: str) -> dict[str, Any]:
        """What was given, as fields of other names."""
        return {field: read[name] for field, name in names.items() if name in read}

    engine = EngineOptions(
        **given(
            loops="workers",
            threads="threads",
            rows="batch_size",
            waiting="max_waiting",
            max_new_tokens="max_new_tokens",
            backend="backend",
        )
    )
    server = ServerOptions(
        engine=engine,
        **given(
            idle_unload="idle_unload",
            longest_request="timeout",
            body_bytes="max_body",
            audio_seconds="max_audio",
            keys="api_key_file",
            log_texts="log_texts",
        ),
    )
    replicas = Replicas(**given(**{name: name for name in OF_REPLICAS}))
    return Arguments(names_of(read["bundles"]), server, replicas)


def _read(name: str, value: Any) -> Any:
    expected, convert = KINDS[name]
    try:
        return convert(value)
    except (KeyError, TypeError, ValueError) as error:
        raise DragomanError(f"{name}: expected {expected}, found {value!r:.80}") from error


def _paths(value: Any) -> list[Path]:
    each = value.split(",") if isinstance(value, str) else value
    return [Path(path) for path in each]


def _integer(value: Any) -> int:
    if isinstance(value, float | bool):
        raise TypeError
    number = int(value)
    if number < 0:
        raise ValueError
    return number


def _count(value: Any) -> int:
    number = _integer(value)
    if number < 1:
        raise ValueError
    return number


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not 0 <= number < float("inf"):
        raise ValueError
    return number


def _more_than_0(value: Any) -> float:
    number = _number(value)
    if number == 0:
        raise ValueError
    return number


def _truth(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


Read = tuple[str, Callable[[Any], Any]]
INTEGER: Read = ("an integer of at least 0", _integer)
COUNT: Read = ("an integer of at least 1", _count)
NUMBER: Read = ("a number of at least 0", _number)
POSITIVE: Read = ("a number above 0", _more_than_0)

OF_REPLICAS: Mapping[str, Read] = {
    "min_replicas": INTEGER,
    "max_replicas": COUNT,
    "target_ongoing_requests": POSITIVE,
    "upscale_delay": NUMBER,
    "downscale_delay": NUMBER,
    "health_seconds": POSITIVE,
    "drain_seconds": NUMBER,
    "gpus": NUMBER,
}
KINDS: Mapping[str, Read] = {
    "bundles": ("paths", _paths),
    "workers": COUNT,
    "threads": COUNT,
    "batch_size": COUNT,
    "max_waiting": COUNT,
    "max_new_tokens": COUNT,
    "max_body": ("megabytes, at least 1", lambda value: _count(value) << 20),
    "max_audio": POSITIVE,
    "timeout": POSITIVE,
    "idle_unload": POSITIVE,
    "backend": ("a name", str),
    "api_key_file": ("the path of a file", lambda value: read_keys(Path(value))),
    "log_texts": ("true or false", _truth),
    **OF_REPLICAS,
}
