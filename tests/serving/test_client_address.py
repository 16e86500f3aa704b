"""Who the client of a request is: `X-Forwarded-For` counts as far as trusted proxies wrote it."""

from __future__ import annotations

import pytest

from dragoman import DragomanError
from dragoman.runtime.serving.clients import client_address, read_proxies

PROXIES = ("127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48")


def address(peer: str | None, *headers: str, trusted: tuple[str, ...] = PROXIES) -> str:
    scope = {
        "type": "http",
        "client": None if peer is None else (peer, 5555),
        "headers": [(b"x-forwarded-for", header.encode("latin-1")) for header in headers],
    }
    return client_address(scope, read_proxies(trusted))


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7, 10.0.0.9"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7", "10.0.0.9"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7:49152"], "203.0.113.7"),
        ("127.0.0.1", ["10.0.0.8,10.0.0.9"], "10.0.0.8"),  # a client within the trusted network
        ("2001:db8:1::5", ["2001:DB8:2:0::7"], "2001:db8:2::7"),
        ("2001:db8:1::5", ["[2001:db8:2::7]:443, [2001:db8:1::1]"], "2001:db8:2::7"),
        ("::ffff:10.1.2.3", ["::ffff:203.0.113.7"], "203.0.113.7"),
    ],
)
def test_what_trusted_proxies_wrote_is_believed(peer: str, headers: list[str], client: str) -> None:
    assert address(peer, *headers) == client


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),  # no proxy
        ("11.0.0.1", ["198.51.100.1"], "11.0.0.1"),
        ("10.1.2.3", ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),  # sent by the client
        ("10.1.2.3", ["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        ("10.1.2.3", ["10.0.0.1, 203.0.113.7, 10.0.0.9"], "203.0.113.7"),
        ("2001:db8:2::5", ["198.51.100.1"], "2001:db8:2::5"),
        (None, ["198.51.100.1"], "unix"),
    ],
)
def test_what_others_wrote_is_not(peer: str | None, headers: list[str], client: str) -> None:
    assert address(peer, *headers) == client
    if peer is not None:
        assert address(peer, *headers, trusted=()) == str(peer)


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        ",",
        "unknown",
        "_hidden",
        "203.0.113.7;",
        "203.0.113.256",
        "203.0.113.7:port",
        "203.0.113.7:",
        ":80",
        "203.0.113.0/24",
        "[2001:db8:2::7",
        "2001:db8:2::7]",
        "[2001:db8:2::7]443",
        "[]:443",
        "fe80::1%eth0",
        "1" * 5000,
        '{"client": "me"}',
    ],
)
def test_entries_that_are_no_addresses_are_ignored(header: str) -> None:
    assert address("10.1.2.3", header) == "10.1.2.3"
    assert address("10.1.2.3", "203.0.113.7", header) == "10.1.2.3"
    assert address("10.1.2.3", header, "203.0.113.7") == "203.0.113.7"


def test_the_peer_of_a_unix_socket() -> None:
    assert address(None, trusted=("unix",)) == "unix"
    assert address(None, "203.0.113.7", trusted=("unix",)) == "203.0.113.7"
    assert address("10.1.2.3", "203.0.113.7", trusted=("unix",)) == "10.1.2.3"


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", "*", "", "Unix"])
def test_proxies_that_are_no_addresses_are_refused(text: str) -> None:
    with pytest.raises(DragomanError, match=r"^trusted_proxies: expected an address, .* found "):
        read_proxies(["10.0.0.1", text])
