"""Records of settings whose types and ranges are checked, and the errors that list all problems.

Files of settings are JSON, or YAML as its version 1.2 defines it for the same data.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import SETTINGS_BYTES, FileError, read_regular
from dragoman.files.strict_json import MAX_DEPTH, parse_json
from dragoman.files.text_lines import undecodable


class ConfigError(DragomanError):
    """An invalid model configuration; lists every problem found."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("invalid model configuration", problems)


class CheckpointError(DragomanError):
    """A checkpoint that is unreadable or does not match its configuration; lists every problem."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__(str(path), problems)


def all_are(kind: type, values: Iterable[object]) -> bool:
    """Return whether all values are of exactly this type."""
    return all(type(value) is kind for value in values)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


Settings = TypeVar("Settings")


def wrong_names(kind: Any, values: Iterable[str]) -> list[str]:
    """Return the problems of names that are no fields of a dataclass, and of missing fields."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    problems = [f"unknown field {shown(name)}" for name in values if name not in fields]
    return problems + [
        f"missing field {name!r}"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in values
    ]


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
    """Read settings, a dataclass, from plain data.

    Args:
        values: a JSON object; lists become tuples
        where: the place in the file, for errors

    Raises:
        DragomanError: names every field that is unknown, missing, of the wrong type or out of
            range.
    """
    if not isinstance(values, dict):
        raise DragomanError(f"{where}: expected an object, found {shown(values)}")
    if problems := wrong_names(kind, values):
        raise DragomanError(where, problems)
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    try:
        return kind(**known)
    except DragomanError as error:
        raise DragomanError(where, error.problems or [str(error)]) from error


SETTINGS_SUFFIXES = (".json", ".yaml", ".yml")
"""The ends of the names of files of settings, in lower case."""


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read a file of settings, by its name JSON or YAML.

    Raises:
        DragomanError: the file cannot be read, is neither, has a name twice, or is no object.
    """
    try:
        data = read_regular(path, SETTINGS_BYTES)
        text = data.decode().removeprefix("\ufeff")
    except FileError as error:
        raise DragomanError(str(error)) from error
    except UnicodeDecodeError as error:
        start, line = error.start, data.count(b"\n", 0, error.start) + 1
        raise DragomanError(f"{path}: {undecodable(data[start], start, line)}") from error
    if path.suffix.lower() == ".json":
        try:
            values, expected = parse_json(text), "a JSON object"
        except ValueError as error:
            problem = f"expected a JSON object, found text that is not JSON: {error}"
            raise DragomanError(f"{path}: {problem}") from error
    else:
        values, expected = _parse_yaml(text, path), "names with values"
    if not isinstance(values, dict):
        raise DragomanError(f"{path}: expected {expected}, found {shown(values)}")
    return values


_TAG = "tag:yaml.org,2002:"
_SCALARS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
        lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
    ),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789", float),
}
"""The finite scalars of YAML 1.2's core schema (chapter 10.3.2) besides texts: their pattern, the
characters that they begin with, and what reads them. PyYAML's own are those of YAML 1.1, to which
`1e-4` is a text and `no` is false."""


def _parse_yaml(text: str, path: Path) -> Any:
    """Parse a text of YAML's core schema; errors name the line and the column."""
    import yaml

    loader: Any = type("CoreSchema", (yaml.BaseLoader,), {})
    for name, (pattern, first, _) in _SCALARS.items():
        initials = [*first, ""] if name == "null" else list(first)
        loader.add_implicit_resolver(_TAG + name, re.compile(f"(?:{pattern})$"), initials)
    left = len(text) + 1  # fewer values than characters, unless references multiply them

    def value_of(node: Any, depth: int = 0) -> Any:
        nonlocal left
        left -= 1
        if depth > MAX_DEPTH or left < 0:
            raise refused(node, f"at most {MAX_DEPTH} levels and few references", "more")
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            values: dict[str, Any] = {}
            for key, value in node.value:
                if key.tag != f"{_TAG}str":
                    raise refused(key, "a text as a name", shown(key.value))
                if key.value in values:
                    raise refused(key, "each name once", f"{shown(key.value)} twice")
                values[key.value] = value_of(value, depth + 1)
            return values
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [value_of(each, depth + 1) for each in node.value]
        if isinstance(node, yaml.ScalarNode) and kind == "str":
            if not node.value.isascii() and re.search("[\ud800-\udfff]", node.value):
                raise refused(node, "text", "half of a surrogate pair")
            return node.value
        if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
            pattern, _, read = _SCALARS[kind]
            try:
                value = read(node.value) if re.fullmatch(pattern, node.value) else math.nan
            except ValueError:  # thousands of digits
                value = math.nan
            if not isinstance(value, float) or math.isfinite(value):
                return value
            raise refused(node, "a finite number" if kind == "float" else kind, shown(node.value))
        tag = node.tag.replace(_TAG, "!!")
        raise refused(node, "texts, numbers, true, false, null, lists and names", f"the tag {tag}")

    def refused(node: Any, expected: str, found: str) -> DragomanError:
        mark = node.start_mark
        return _at(path, mark.line, mark.column, f"expected {expected}, found {found}")

    try:
        root = yaml.compose(text, loader)
        return None if root is None else value_of(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise _at(path, mark.line, mark.column, f"expected YAML: {problem}") from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise DragomanError(f"{path}: expected YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise DragomanError(f"{path}: expected at most {MAX_DEPTH} levels, found more") from error


def _at(path: Path, line: int, column: int, problem: str) -> DragomanError:
    return DragomanError(f"{path}, line {line + 1}, column {column + 1}: {problem}")


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
        elif get_origin(kind) is tuple and get_args(kind)[-1] is ...:
            good = isinstance(value, tuple) and bool(value)
            good = good and all(isinstance(x, get_args(kind)[0]) for x in value)
            expected = f"a list of {get_args(kind)[0].__name__}"
        elif get_origin(kind) is tuple:
            good = isinstance(value, tuple) and len(value) == len(get_args(kind))
            good = good and all(isinstance(x, int | float) for x in value)
            expected = f"{len(get_args(kind))} numbers"
        else:
            good, expected = isinstance(value, kind), f"a {kind.__name__}"
        if not (good or (optional and value is None)):
            problems[name] = f"{name} must be {expected}, found {shown(value)}"
    return problems
