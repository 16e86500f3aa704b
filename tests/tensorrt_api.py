"""Objects of TensorRT restricted to a recorded version of its API.

TensorRT needs a GPU to build and run engines. What replaces it in tests (TensorRT-RTX, which has
the same API, or a double) is wrapped: a member that the recorded version lacks raises an
AttributeError, as in that version, and a call must fit a recorded signature. `record_api.py` makes
the records.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RECORDS = Path(__file__).parent / "optimize" / "tensorrt" / "api"
SUBCLASSED = ("ILogger", "IProgressMonitor")
"""Classes that our code derives from: not wrapped."""

Api = dict[str, dict[str, list[str]]]


def recorded(name: str) -> Api:
    """The record of a package and version, such as "tensorrt-11.4.0.106"."""
    api: Api = json.loads((RECORDS / f"{name}.json").read_text())
    return api


def checked_module(module: Any, api: Api) -> Any:
    """A module with the classes and members that the recorded version has."""
    classes = {
        name: getattr(module, name)
        if name in SUBCLASSED
        else _Checked(getattr(module, name), name, api)
        for name in api
        if hasattr(module, name)
    }
    return SimpleNamespace(**classes, __version__=module.__version__)


class _Checked:
    """An object, class or method of the package."""

    def __init__(
        self, value: Any, kind: str, api: Api, signatures: list[str] | None = None
    ) -> None:
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_api", api)
        object.__setattr__(self, "_signatures", signatures)

    def __getattr__(self, name: str) -> Any:
        members = self._api[self._kind]
        if name == "__members__":
            return {n: v for n, v in self._value.__members__.items() if n in members}
        if name not in members:
            raise AttributeError(f"{self._kind} of the recorded version has no {name}")
        value = getattr(self._value, name)
        if callable(value) and members[name]:
            return _Checked(value, self._kind, self._api, members[name])
        return _wrapped(value, self._api)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":
            self._value.__class__ = value._value
            object.__setattr__(self, "_kind", value._kind)
            return
        if name not in self._api[self._kind]:
            raise AttributeError(f"{self._kind} of the recorded version has no {name}")
        setattr(self._value, name, _plain(value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._signatures is not None
        signatures = self._signatures or self._api[self._kind]["__init__"]
        assert any(_fits(signature, args, kwargs) for signature in signatures), (
            f"{self._kind}: called with {args}, {kwargs}, expected one of {signatures}"
        )
        result = self._value(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
        return _wrapped(result, self._api) if method else _Checked(result, self._kind, self._api)

    def __eq__(self, other: object) -> bool:
        return bool(self._value == _plain(other))

    def __hash__(self) -> int:
        return hash(self._value)

    def __int__(self) -> int:
        return int(self._value)

    def __bytes__(self) -> bytes:
        return bytes(self._value)

    def __str__(self) -> str:
        return str(self._value)


def _wrapped(value: Any, api: Api) -> Any:
    if isinstance(value, tuple):
        return tuple(_wrapped(item, api) for item in value)
    kind = next((c.__name__ for c in type(value).__mro__ if c.__name__ in api), None)
    return value if kind is None or kind in SUBCLASSED else _Checked(value, kind, api)


def _plain(value: Any) -> Any:
    return value._value if isinstance(value, _Checked) else value


def _fits(signature: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call binds to a signature, by number and names of its arguments."""
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    parameters = []
    for part in re.split(r", (?=\*{0,2}\w+(?::|$|=|,))", inside):
        name = part.partition(":")[0].partition("=")[0].strip()
        if name in ("", "self"):
            continue
        if name.startswith("*"):
            return True
        default = None if "=" in part else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=default))
    try:
        inspect.Signature(parameters).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
