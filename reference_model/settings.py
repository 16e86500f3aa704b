"""Records of settings whose types and ranges are checked, and the errors that list all problems."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from dragoman.errors import DragomanError, shown


class ConfigError(DragomanError):
    """An invalid model configuration; lists every problem found."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("invalid model configuration", problems)


class CheckpointError(DragomanError):
    """A checkpoint that is unreadable or does not match its configuration; lists every problem."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(str(path), problems)


Settings = TypeVar("Settings")


def check_settings(settings: object, out_of_range: Callable[[], Iterable[str]]) -> None:
    """Check the fields of a dataclass, in its `__post_init__`.

    Args:
        out_of_range: returns problems of the values, a sentence each; called if all types are right

    Raises:
        DragomanError: names every field of the wrong type or out of range.
    """
    problems = list(wrong_types(settings).values()) or list(out_of_range())
    if problems:
        raise DragomanError(problems=problems)


def read_settings(kind: type[Settings], values: object, where: str) -> Settings:
    """Read settings from plain data.

    Args:
        kind: a dataclass
        values: a JSON object; lists become tuples
        where: the place in the file, for errors

    Raises:
        DragomanError: names every field that is unknown, missing, of the wrong type or out of
            range.
    """
    if not isinstance(values, dict):
        raise DragomanError(f"{where}: expected an object, found {shown(values)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    problems = [f"unknown field {shown(name)}" for name in values if name not in fields]
    problems += [
        f"missing field {name!r}"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in values
    ]
    if problems:
        raise DragomanError(where, problems)
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    try:
        return kind(**known)
    except DragomanError as error:
        raise DragomanError(where, error.problems or [str(error)]) from error


def wrong_types(settings: object) -> dict[str, str]:
    """Return the problems of a dataclass's fields whose values have the wrong type, by name."""
    problems = {}
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        optional = type(None) in get_args(hint)
        kind = next(iter(get_args(hint))) if optional else hint
        if kind is float:
            good = isinstance(value, int | float) and not isinstance(value, bool)
            good = good and not abs(value) > sys.float_info.max
            expected = "a number"
        elif kind is bool:
            good, expected = isinstance(value, bool), "true or false"
        elif kind is int:
            good = isinstance(value, int) and not isinstance(value, bool)
            good = good and -(2**63) <= value < 2**63
            expected = "an integer" if type(value) is not int else "an integer of 64 bits"
        elif get_origin(kind) is Literal:
            good = value in get_args(kind)
            expected = "one of " + ", ".join(get_args(kind))
        elif get_origin(kind) is tuple:
            good = isinstance(value, tuple) and len(value) == len(get_args(kind))
            good = good and all(isinstance(x, int | float) for x in value)
            expected = f"{len(get_args(kind))} numbers"
        else:
            good, expected = isinstance(value, kind), f"a {kind.__name__}"
        if not (good or (optional and value is None)):
            problems[name] = f"{name} must be {expected}, found {shown(value)}"
    return problems
