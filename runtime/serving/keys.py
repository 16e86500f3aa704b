"""Keys of those who may use a server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from starlette.exceptions import HTTPException

from dragoman.errors import DragomanError


class Keys:
    """
    Args:
        keys: none: everybody may use the server
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def check(self, headers: Mapping[str, str], given: object = None) -> None:
        """
        Args:
            headers: of a request, where a key is a bearer token (RFC 6750)
            given: a key that its body has

        Raises:
            HTTPException: of status 401: there is no such key.
        """
        if not self._keys:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        found = token.strip() if scheme.lower() == "bearer" else given
        offered = found.encode() if isinstance(found, str) else b""
        # All are compared, each in constant time: how long it takes says nothing of any key.
        equal = [hmac.compare_digest(offered, key) for key in self._keys]
        if not any(equal):
            challenge = {"WWW-Authenticate": "Bearer"}
            raise HTTPException(
                401, "expected a key as a bearer token, found none that is known", challenge
            )


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines and those that begin with # are none.

    Raises:
        DragomanError: the file cannot be read, has no key, or one that no header can have.
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
