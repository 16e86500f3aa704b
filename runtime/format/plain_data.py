"""Converts JSON data to frozen dataclasses and back. Reading reports every type error."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dragoman.errors import shown
from dragoman.settings.fields import LeftOut, annotated

T = TypeVar("T")


class Problems(list[str]):
    """A list of problems, each a line `path: expected ..., found ...`."""

    def expected(self, path: str, expected: str, found: object) -> None:
        """Add a problem: the expected and the found value at a path."""
        self.append(f"{path}: expected {expected}, found {shown(found)}")


def to_plain(value: Any, *, brief: bool = False) -> Any:
    """Convert a tree of dataclasses to data that `json.dumps` accepts.

    If `brief`, fields marked `LEFT_OUT` that have their defaults are omitted, as in manifests.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        optional = annotated(type(value), LeftOut) if brief else {}
        return {
            field.name: to_plain(getattr(value, field.name), brief=brief)
            for field in dataclasses.fields(value)
            if field.name not in optional or getattr(value, field.name) != field.default
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item, brief=brief) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, brief=brief) for item in value]
    return value


def from_plain(kind: type[T], data: object, path: str, problems: Problems) -> T | None:
    """Convert plain data to a `kind`; add problems and return None if the data does not fit.

    It supports dataclasses, str, int, float, bool, None, Literal, unions of these, tuple[X, ...],
    dict[str, X] and Any. In a union of dataclasses, the first field of each is its tag: a Literal
    with the same name in all of them. Unknown names are problems too.
    """
    before = len(problems)
    value = _read(kind, data, path, problems)
    return value if len(problems) == before else None


def _read(kind: Any, data: object, path: str, problems: Problems) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, path, problems)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), data, path, problems)
    if origin is Literal:
        if not any(data == option and type(data) is type(option) for option in get_args(kind)):
            problems.expected(path, "one of " + ", ".join(map(repr, get_args(kind))), data)
        return data
    if origin is tuple:
        if not isinstance(data, list):
            problems.expected(path, "a list", data)
            return None
        item = get_args(kind)[0]
        return tuple(_read(item, x, f"{path}[{i}]", problems) for i, x in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            problems.expected(path, "an object", data)
            return None
        item = get_args(kind)[1]
        return {key: _read(item, x, f"{path}.{key}", problems) for key, x in data.items()}
    if not _is_scalar(kind, data):
        problems.expected(path, _SCALARS[kind], data)
        return None
    value: Any = data
    try:
        value = float(value) if kind is float else value
    except OverflowError:
        value = None
    if value is None or (kind is int and not -(2**63) <= value < 2**63):
        problems.expected(path, "a number that fits 64 bits", data)
        return None
    return value


def _read_dataclass(kind: Any, data: object, path: str, problems: Problems) -> Any:
    if not isinstance(data, dict):
        problems.expected(path, "an object", data)
        return None
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    problems.extend(f"{path}.{name}: unknown name" for name in data if name not in fields)
    before = len(problems)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _read(hints[name], data[name], f"{path}.{name}", problems)
        elif field.default is field.default_factory is dataclasses.MISSING:
            problems.append(f"{path}.{name}: missing")
    return kind(**values) if len(problems) == before else None


def _read_union(options: tuple[Any, ...], data: object, path: str, problems: Problems) -> Any:
    if data is None and types.NoneType in options:
        return None
    rest = [option for option in options if option is not types.NoneType]
    if len(rest) > 1 and all(map(dataclasses.is_dataclass, rest)):
        return _read_tagged(rest, data, path, problems)
    for option in rest:
        attempt = Problems()
        value = _read(option, data, path, attempt)
        if not attempt:
            return value
    if len(rest) == 1:
        problems.extend(attempt)
    else:
        described = [
            " or ".join(map(repr, get_args(option)))
            if get_origin(option) is Literal
            else _SCALARS.get(option, str(option))
            for option in rest
        ]
        problems.expected(path, " or ".join(described), data)
    return None


def _read_tagged(options: list[Any], data: object, path: str, problems: Problems) -> Any:
    tag = dataclasses.fields(options[0])[0].name
    if not isinstance(data, dict):
        problems.expected(path, "an object", data)
        return None
    known = {get_args(get_type_hints(option)[tag])[0]: option for option in options}
    if not isinstance(data.get(tag), str) or data[tag] not in known:
        names = ", ".join(map(repr, known))
        problems.expected(f"{path}.{tag}", f"one of {names}", data.get(tag))
        return None
    return _read_dataclass(known[data[tag]], data, path, problems)


_SCALARS: dict[Any, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
}


def _is_scalar(kind: Any, data: object) -> bool:
    if kind is bool or isinstance(data, bool):
        return kind is bool and isinstance(data, bool)
    return isinstance(data, int | float) if kind is float else isinstance(data, kind)
