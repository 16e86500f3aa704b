"""Declares the allowed values of dataclass fields with `Annotated`.

Checks, command-line options and groups of generation settings are derived from them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from dragoman.errors import DragomanError, listed, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")
Annotation = TypeVar("Annotation")

SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The range of positive normal numbers."""


@dataclass(frozen=True)
class Bounds:
    """The range of a number, inclusive."""

    words: str
    """Expected value in error messages."""
    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    """Whether `least` itself is excluded."""

    def hold(self, value: float) -> bool:
        """Return whether a number is within the bounds."""
        return self.least <= value <= self.most and not (self.above and value == self.least)


@dataclass(frozen=True)
class Check:
    """The allowed values of an option."""

    expected: str
    """Description of the values, such as "an integer of at least 1"."""
    holds: Callable[[Any], bool]
    """Returns whether a value is allowed."""
    bounds: Bounds | None = None
    """Bounds of a number, for the command line; None: only `holds` checks."""


@dataclass(frozen=True)
class CommandOption:
    """The command-line option of a field."""

    section: str
    """Section heading in the help."""
    help: str
    """Help text."""
    names: str = ""
    """Names of the option; "": the field's name with dashes."""
    metavar: str = ""
    """Placeholder of the value in the help; "": N, X or TEXT, by the field's type."""
    choices: tuple[str, ...] = ()
    """Allowed values, if they are few."""
    sets: bool | None = None
    """Value that an option without a value sets; None: it has an opposite, `--no-...`."""
    hidden: bool = False
    """Whether only guides describe the option, and the help does not."""


class LeftOut:
    """Marks a field that manifests omit if it has its default."""


LEFT_OUT = LeftOut()


def integer(least: int, *, optional: bool = True) -> Check:
    """Return the check of an integer of at least `least`; None is allowed if `optional`."""
    words = f"an integer of at least {least}"
    return Check(
        words,
        lambda v: (optional and v is None) or (is_integer(v) and v >= least),
        Bounds(words, least),
    )


def number(words: str, bounds: Bounds | None, within: Callable[[float], bool]) -> Check:
    """Return the check of a number; None is allowed.

    Args:
        words: text that follows "a number"
    """
    return Check(
        f"a number{words}",
        lambda v: v is None or (is_number(v) and _has_float(v) and within(v)),
        bounds,
    )


FLAG = Check("True, False or None", lambda v: v is None or is_flag(v))
SWITCH = Check("True or False", lambda v: is_flag(v))
TEXT = Check("a text", lambda v: isinstance(v, str | None))


@cache
def annotated(record: type, kind: type[Annotation]) -> Mapping[str, Annotation]:
    """Return the annotations of a kind by field name."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: found
        for name, hint in hints.items()
        for found in getattr(hint, "__metadata__", ())
        if isinstance(found, kind)
    }


def wrong_fields(record: DataclassInstance) -> list[str]:
    """Return the fields that violate their `Check`, one line each."""
    return [
        f"{name}: expected {check.expected}, found {shown(getattr(record, name))}"
        for name, check in annotated(type(record), Check).items()
        if not check.holds(getattr(record, name))
    ]


def wrong_bounds(record: DataclassInstance) -> list[str]:
    """Return the fields outside their `Bounds`, one line each."""
    return [
        f"{name}: expected {bounds.words}, found {shown(getattr(record, name))}"
        for name, bounds in annotated(type(record), Bounds).items()
        if not bounds.hold(getattr(record, name))
    ]


def replaced(options: Options, changes: Mapping[str, Any]) -> Options:
    """Return options with some values changed by name."""
    known = [field.name for field in dataclasses.fields(options)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise DragomanError(
            f"unknown option {listed(unknown)}: expected some of {', '.join(known)}"
        )
    return dataclasses.replace(options, **changes)


def is_integer(value: object) -> bool:
    """Return whether a value is an integer of Python or numpy; bool is excluded."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a real number of Python or numpy; bool is excluded."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_flag(value: object) -> bool:
    """Return whether a value is True or False, of Python or numpy."""
    return isinstance(unwrapped(value), bool) and not hasattr(value, "__setitem__")  # no array


def is_token_ids(value: object) -> bool:
    """Return whether a value is a sequence of integers."""
    value = unwrapped(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    return all(is_integer(token) for token in value)


def unwrapped(value: Any) -> Any:
    """Convert a numpy scalar or array to plain Python; return other values unchanged."""
    return value.tolist() if type(value).__module__.partition(".")[0] == "numpy" else value


def type_of(hint: Any) -> Any:
    """Return the type of a field's hint without None."""
    options = [option for option in get_args(hint) if option is not type(None)]
    return options[0] if len(options) == 1 else hint


def _has_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True
