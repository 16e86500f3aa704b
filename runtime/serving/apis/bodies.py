"""Bodies of requests: objects of JSON, and their fields."""

from __future__ import annotations

from typing import Any

from dragoman.errors import DragomanError
from dragoman.strict_json import parse_json


class BodyError(DragomanError):
    """The body of a request is not what its route takes."""


def json_object(request_body: bytes) -> dict[str, Any]:
    """The object that a body is.

    Raises:
        BodyError: it is none.
    """
    try:
        values = parse_json(request_body.decode())
    except ValueError as error:
        raise BodyError(f"expected a JSON object: {error}") from error
    if not isinstance(values, dict):
        raise BodyError(f"expected a JSON object, found {type(values).__name__}")
    return values


class Fields:
    """The fields of an object, taken one by one; what nobody takes is an error.

    Args:
        values: is emptied
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """
        Args:
            default: in place of a field that is missing or null

        Raises:
            BodyError: it is of another kind.
        """
        value = self._values.pop(name, None)
        if value is None:
            return default
        wrong_bool = isinstance(value, bool) and bool not in _kinds(kind)
        if wrong_bool or not isinstance(value, kind):
            expected = " or ".join(NAMES.get(k, k.__name__) for k in _kinds(kind))
            found = NAMES.get(type(value), type(value).__name__)
            raise BodyError(f"{name}: expected {expected}, found {found}")
        return value

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """
        Raises:
            BodyError: it is missing, or of another kind.
        """
        value = self.take(name, kind)
        if value is None:
            raise BodyError(f"{name}: expected, found none")
        return value

    def ignore(self, *names: str) -> None:
        """What clients send and means nothing here."""
        for name in names:
            self._values.pop(name, None)

    @property
    def rest(self) -> dict[str, Any]:
        """What was not taken."""
        return self._values

    def end(self) -> None:
        """
        Raises:
            BodyError: something was not taken.
        """
        if self._values:
            names = ", ".join(sorted(self._values))
            raise BodyError(f"unknown: {names:.200}")


NAMES: dict[type, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


def _kinds(kind: type | tuple[type, ...]) -> tuple[type, ...]:
    return kind if isinstance(kind, tuple) else (kind,)
