"""Settings that people write: dataclasses whose types and ranges are checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dragoman.errors import DragomanError

from .config_checks import wrong_types

Settings = TypeVar("Settings")


def check_settings(settings: object, out_of_range: Callable[[], Iterable[str]]) -> None:
    """For `__post_init__`.

    Args:
        out_of_range: problems of the values, a sentence each; called if all types are right

    Raises:
        DragomanError: names every field of the wrong type or out of range.
    """
    problems = list(wrong_types(settings).values()) or list(out_of_range())
    if problems:
        raise DragomanError("; ".join(problems))


def read_settings(kind: type[Settings], values: object, where: str) -> Settings:
    """Settings from plain data.

    Args:
        kind: a dataclass
        values: of a JSON object; lists become tuples
        where: the place in the file, for errors

    Raises:
        DragomanError: names what is unknown, missing, of the wrong type or out of range.
    """
    if not isinstance(values, dict):
        raise DragomanError(f"{where}: expected an object, found {values!r:.80}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    problems = [f"unknown field {name!r}" for name in values if name not in fields]
    problems += [
        f"missing field {name!r}"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in values
    ]
    if problems:
        raise DragomanError(f"{where}: {'; '.join(problems)}")
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    try:
        return kind(**known)
    except DragomanError as error:
        raise DragomanError(f"{where}: {error}") from error
