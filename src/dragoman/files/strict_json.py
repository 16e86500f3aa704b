"""Reads JSON as RFC 8259 defines it, wherever Dragoman reads JSON.

Python's own reader accepts more: NaN and infinities (also as 1e999), a name that occurs twice, of
which the last wins, and halves of surrogate pairs, which no file can be written with. Another
program would read another value, or fail later. Values nested so deeply that code which walks them
would exhaust the stack are refused too.
"""

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from dragoman.errors import shown
from dragoman.files.regular_files import SETTINGS_BYTES, FileError, read_regular

MAX_DEPTH = 100
"""Arrays and objects inside each other. The files that are read have up to about ten."""


def parse_json(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: it is not JSON, has a number that is not finite or has thousands of digits, a
            name twice in an object, half of a surrogate pair, or is nested more than `MAX_DEPTH`
            deep.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_not_finite
        )
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(value)
    if "\\u" in text:  # text that was decoded has none but by escapes
        _check_is_text(value)
    return value


def read_json(path: Path, *, limit: int = SETTINGS_BYTES) -> Any:
    """Read a JSON file in UTF-8 of at most `limit` bytes.

    Raises:
        FileError: there is no such file, it is no regular file, too large, cannot be read, or is
            not JSON as `parse_json` reads it.
    """
    return _read(path, limit, "expected JSON")


def read_json_object(path: Path, *, limit: int = SETTINGS_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        FileError: as `read_json`; or it is not an object.
    """
    values = _read(path, limit, "expected a JSON object, found text that is not JSON")
    if not isinstance(values, dict):
        raise FileError(path, f"expected a JSON object, found {type(values).__name__}")
    return values


def _read(path: Path, limit: int, expectation: str) -> Any:
    data = read_regular(path, limit)
    try:
        return parse_json(data.decode())
    except ValueError as error:
        raise FileError(path, f"{expectation}: {error}") from error


_TOO_DEEP = f"expected arrays and objects at most {MAX_DEPTH} deep, found them deeper"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"expected each name once in an object, found {shown(name)} twice")
            seen.add(name)
    return values


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, found {digits:.80}")
    return value


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"expected finite numbers, found {name}")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _check_is_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end].encode(errors="backslashreplace").decode()
        raise ValueError(f"expected text, found half of a surrogate pair: {found}") from error
