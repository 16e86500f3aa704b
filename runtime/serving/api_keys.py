"""The API keys of a server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dragoman.errors import DragomanError


class UnauthorizedError(DragomanError):
    """A request has no valid API key."""

    status, code = 401, "unauthorized"
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class ApiKeys:
    """The API keys that a server accepts.

    Args:
        keys: the accepted keys; empty: requests need no key
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def check(self, headers: Mapping[str, str], body_key: object = None) -> None:
        """Check the key of a request.

        Args:
            headers: headers of the request; a key is a bearer token (RFC 6750)
            body_key: the key in the body of the request, used if the headers have none

        Raises:
            UnauthorizedError: the request has no valid key.
        """
        if not self._keys:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        found = token.strip() if scheme.lower() == "bearer" else body_key
        offered = found.encode() if isinstance(found, str) else b""
        # Constant time: all keys are compared, so the time reveals nothing about them.
        equal = [hmac.compare_digest(offered, key) for key in self._keys]
        if not any(equal):
            raise UnauthorizedError("expected an API key as a bearer token, found no valid key")


def read_keys(path: Path) -> tuple[str, ...]:
    """Read a file with one key per line, skipping empty lines and lines that begin with #.

    Raises:
        DragomanError: the file cannot be read, has no key, or has a key that no header can hold.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path}: expected a file of keys, one a line: {error}") from error
    keys = {
        number: line.strip()
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    }
    if not keys:
        raise DragomanError(f"{path}: expected a key on a line, found none")
    for number, key in keys.items():
        if not (key.isascii() and key.isprintable()):
            raise DragomanError(
                f"{path}: expected a key of printable ASCII characters, found others on line "
                f"{number}"
            )
    return tuple(keys.values())
