"""API keys and addresses of clients, also behind proxies."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dragoman.errors import DragomanError, shown


class UnauthorizedError(DragomanError):
    """A request has no valid API key."""

    status, code = 401, "unauthorized"
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class ApiKeys:
    """The API keys that a server accepts; without any, requests need none."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.replace(keys)

    def replace(self, keys: tuple[str, ...]) -> None:
        """Accept other keys from now on, all at once."""
        self._keys = tuple(key.encode() for key in keys)

    def check(self, headers: Mapping[str, str], body_key: object = None) -> None:
        """Raise an `UnauthorizedError` unless a request has a valid key.

        Args:
            headers: a key is a bearer token (RFC 6750)
            body_key: used if the headers have no key
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
    """Read a file with one key per line, but for empty lines and comments with #.

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


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

UNIX_SOCKET = "unix"
"""Stands for the peer of a Unix socket, which has no address."""


def read_proxies(texts: Sequence[str]) -> tuple[Network | str, ...]:
    """Parse the addresses and networks of trusted proxies.

    Args:
        texts: addresses such as "10.0.0.2" or "::1", networks such as "10.0.0.0/8", or "unix"
    """
    proxies: list[Network | str] = []
    for text in texts:
        try:
            proxies.append(text if text == UNIX_SOCKET else ipaddress.ip_network(text))
        except ValueError as error:
            raise DragomanError(
                "trusted_proxies: expected an address, a network such as 10.0.0.0/8, or "
                f"{UNIX_SOCKET}, found {shown(text)}: {error}"
            ) from error
    return tuple(proxies)


def client_address(scope: Mapping[str, Any], trusted: Sequence[Network | str]) -> str:
    """Return the address of a request's client.

    Each proxy appends its peer's address to `X-Forwarded-For`, so the header is read from its end,
    and only as far as trusted proxies wrote it: what stands before that, anybody may have sent.
    """
    peer = scope.get("client")
    found = (_read(peer[0]) or peer[0]) if peer else UNIX_SOCKET
    chains = (value.decode("latin-1") for n, value in scope["headers"] if n == b"x-forwarded-for")
    hops = ",".join(chains).split(",")
    while hops and _is_trusted(found, trusted):
        hop = _read_hop(hops.pop().strip())
        if hop is None:
            break
        found = hop
    return str(found)


def _is_trusted(peer: Address | str, trusted: Sequence[Network | str]) -> bool:
    if isinstance(peer, str):
        return peer in trusted
    return any(not isinstance(one, str) and peer in one for one in trusted)


def _read(text: str) -> Address | None:
    """Return an address, if the text is one; IPv4 mapped into IPv6 as IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _read_hop(text: str) -> Address | None:
    """Return the address of an entry of the header, which may have a port."""
    host, _, port = text.removeprefix("[").rpartition("]:" if text.startswith("[") else ":")
    if "%" in text:  # the zone of an address, which means nothing on another machine
        return None
    if text.startswith("[") and text.endswith("]"):
        return _read(text[1:-1])
    has_port = port.isascii() and port.isdigit() and (text.startswith("[") or ":" not in host)
    return _read(host if host and has_port else text)
