"""Request bodies in JSON; for Triton, too, so that no HTTP library is needed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Any

from dragoman.errors import LONGEST_VALUE, DragomanError, listed, nearest
from dragoman.files.strict_json import parse_json
from dragoman.settings.generation import GenerationOptions

from ...decoding.results import RejectedError
from ...format.manifest import Manifest
from ...format.texts import Prompts

MOST_SOURCES = 1024
"""How many sources a request may have."""
MOST_COMPARED = 64
"""How many fields of a request are compared with a missing one."""
OPTION_NAMES = frozenset(f.name for f in dataclasses.fields(GenerationOptions)) - {
    "max_batch_size",
    "max_batch_tokens",
}
"""Generation options of a request. How requests are batched is up to the server."""

TYPE_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


@contextmanager
def spelled(names: Mapping[str, str]) -> Iterator[None]:
    """Name options in errors as an API does, which calls those in `names` otherwise."""
    try:
        yield
    except DragomanError as error:
        pattern = rf"\b({'|'.join(names)})\b"
        error.args = (re.sub(pattern, lambda found: names[found[0]], str(error)),)
        raise


class BodyError(DragomanError):
    """The body of a request is not valid for its endpoint."""


def json_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object in UTF-8, with or without a byte order mark."""
    try:
        values = parse_json(body.decode("utf-8-sig"))
    except ValueError as error:
        raise BodyError(f"expected a JSON object: {error}") from error
    if not isinstance(values, dict):
        raise BodyError(f"expected a JSON object, found {type(values).__name__}")
    return values


class Fields:
    """The fields of a JSON object, taken one by one.

    Attributes:
        rest: the fields that were not taken
        known: the names of the fields that an endpoint takes
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.rest = values
        self.known: list[str] = []

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Take an optional field; a `BodyError` reports another type."""
        value = self.pop(name)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wrong_bool = isinstance(value, bool) and bool not in kinds
        if wrong_bool or not isinstance(value, kinds):
            expected = " or ".join(TYPE_NAMES.get(k, k.__name__) for k in kinds)
            found = TYPE_NAMES.get(type(value), type(value).__name__)
            raise BodyError(f"{name}: expected {expected}, found {found}")
        return value

    def require(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Take a required field; see `take`."""
        value = self.take(name, kind)
        if value is None:
            similar = self.similar(name)
            found = f"; found {similar}" if similar else ""
            raise BodyError(f"{name}: required field is missing{found}")
        return value

    def pop(self, name: str) -> Any:
        """Take an optional field of any type; None if it is missing."""
        self.known.append(name)
        return self.rest.pop(name, None)

    def ignore(self, *names: str) -> None:
        """Drop fields that have no effect here."""
        for name in names:
            self.pop(name)

    def similar(self, *names: str) -> str:
        """Describe fields that are left and resemble missing ones, for an error message."""
        left = [name for name in islice(self.rest, MOST_COMPARED) if len(name) <= LONGEST_VALUE]
        return listed({near for name in names for near in get_close_matches(name, left, 1, 0.75)})

    def end(self) -> None:
        """Raise a `BodyError` if fields are left."""
        if self.rest:
            raise BodyError(f"unknown: {listed(self.rest)}{nearest(self.rest, self.known)}")


def reading_options(fields: Fields, *, truncate: bool = False) -> dict[str, Any]:
    """Take `truncate` and `split_special_tokens`, for which the server has a default."""
    options = {"truncate": fields.take("truncate", bool, truncate)}
    splits = fields.take("split_special_tokens", bool)
    return options if splits is None else options | {"split_special_tokens": splits}


def prompt_option(fields: Fields, manifest: Manifest) -> dict[str, Any]:
    """Take `prompt_name`, which the model has to know; without it, the model's default applies."""
    name, tokenizers = fields.take("prompt_name", str), manifest.tokenizers
    if name is not None and tokenizers is not None:
        (tokenizers.prompts or Prompts({})).before(name)
    return {} if name is None else {"prompt_name": name}


def check_results(results: Sequence[Any], before: str = "") -> None:
    """Raise a `RejectedError`, which `before` begins, if an input of a request was rejected."""
    for index, result in enumerate(results):
        if result.error is not None:
            raise RejectedError(f"{before}{index}: {result.error}")


def generation_options(values: dict[str, Any], fields: Sequence[str] = ()) -> GenerationOptions:
    """Create generation options from fields; see `option_values`."""
    return GenerationOptions(**option_values(values, sorted(OPTION_NAMES), fields))


def option_values(
    values: dict[str, Any], names: Sequence[str], fields: Sequence[str]
) -> dict[str, Any]:
    """Return the values of options; null stands for the default.

    Args:
        fields: known fields of a request that are not options

    Raises:
        BodyError: a name is not an option.
    """
    unknown = values.keys() - set(names)
    if unknown:
        raise BodyError(
            f"unknown: {listed(unknown)}; options are {', '.join(names)}"
            f"{nearest(unknown, [*fields, *names])}"
        )
    return {name: value for name, value in values.items() if value is not None}
