"""What HTTP allows and clients do: compressed bodies, other origins, proxies, HTTP/1.0."""

from __future__ import annotations

import gzip
import json
import re
import socket
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import DragomanError
from dragoman.runtime.serving.apis.bodies import BodyError
from dragoman.runtime.serving.apis.http import BodyTooLargeError
from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.middleware import BodyDecoder
from dragoman.runtime.serving.options import ServerOptions

from .conftest import serving
from .hostile_bodies import FORM, form
from .valid_bodies import SPOKEN

Bundles = Callable[[str], Path]
GENERATE = "/v1/generate"
BODY = json.dumps({"model": "letters", "source": "dragoman"}).encode()
LIMIT = 1 << 20
ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def client(bundle: Bundles) -> Iterator[httpx.Client]:
    directories = {name: bundle(name) for name in ("letters", "speech")}
    options: dict[str, Any] = {"max_body_bytes": LIMIT, "api_keys": ("secret",)}
    with serving(directories, cors_origins=(ORIGIN,), root_path="/at/here", **options) as client:
        client.headers["Authorization"] = "Bearer secret"
        yield client


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


CODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "two members": ("GZIP", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "x-gzip": ("x-gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "stored": ("deflate", lambda data: zlib.compress(data, 0)),
    "without a header": ("deflate", raw_deflate),
    "identity": ("identity", bytes),
}


@pytest.mark.parametrize("name", CODERS)
def test_compressed_bodies_are_decoded(client: httpx.Client, name: str) -> None:
    coding, encode = CODERS[name]
    expected = client.post(GENERATE, content=BODY).json()
    encoded = encode(BODY)
    for content in (encoded, (encoded[n : n + 1] for n in range(len(encoded)))):
        headers = {"content-encoding": coding}
        answer = client.post(GENERATE, content=content, headers=headers)
        assert (answer.status_code, answer.json()) == (200, expected)


def test_compressed_uploads_are_decoded(client: httpx.Client) -> None:
    upload, headers = form(SPOKEN), {"content-type": FORM}
    path = "/v1/audio/transcriptions"
    expected = client.post(path, content=upload, headers=headers).json()
    compressed = headers | {"content-encoding": "gzip"}
    answer = client.post(path, content=gzip.compress(upload), headers=compressed)
    assert (answer.status_code, answer.json()) == (200, expected)


@pytest.mark.parametrize(
    ("coding", "content", "status", "words"),
    [
        ("br", BODY, 415, "content-encoding: expected gzip, deflate or none, found 'br'"),
        ("gzip, gzip", BODY, 415, "found 'gzip, gzip'"),
        ("x-br", BODY, 415, "found 'x-br'"),
        ("x" * 5000, BODY, 415, "found 'xxx"),
        ("gzip", BODY, 400, "expected a body in gzip: "),
        ("deflate", b"\xff" * 9, 400, "expected a body in deflate: "),
        ("gzip", gzip.compress(BODY)[:-1], 400, "expected a whole gzip body"),
        ("deflate", zlib.compress(BODY) + b"{}", 400, "expected nothing after the deflate body"),
        ("gzip", gzip.compress(bytes(LIMIT + 1)), 413, f"at most {LIMIT} bytes, found more"),
        ("gzip", gzip.compress(bytes(LIMIT)) + gzip.compress(b"x"), 413, "found more"),
        ("deflate", raw_deflate(bytes(100 * LIMIT)), 413, "found more"),
    ],
    # a gzip header has the time of its making, and all processes shall collect the same tests
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else str(value)[:20],
)
def test_bodies_that_cannot_be_decoded(
    client: httpx.Client, coding: str, content: bytes, status: int, words: str
) -> None:
    for path in (GENERATE, "/v1/embeddings", "/translate", "/v2/models/letters/infer"):
        answer = client.post(path, content=content, headers={"content-encoding": coding})
        assert answer.status_code == status, answer.text
        assert words in answer.text and len(answer.text) < 300
        assert status != 415 or answer.headers["accept-encoding"] == "gzip, deflate"


def test_a_body_that_will_be_too_large_is_refused_at_once(client: httpx.Client) -> None:
    """Before it arrives: a client that waits for permission gets the refusal instead."""
    for more in ("Expect: 100-continue", "X: x"):
        head, _, _ = request("1.1", {}, more).partition(b"\r\n\r\n")
        head = head.replace(b"Content-Length: 2", b"Content-Length: 99999999999999999")
        answer, body = spoken(client, head + b"\r\n\r\n")
        assert answer.startswith(b"http/1.1 413") and b"connection: close" in answer
        assert json.loads(body)["error"] == f"expected a body of at most {LIMIT} bytes, found more"


def test_a_bomb_takes_no_more_memory_than_a_body_may() -> None:
    bomb = gzip.compress(bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError):
            BodyDecoder("gzip", LIMIT).decode(bomb, is_last=True)
        assert tracemalloc.get_traced_memory()[1] < 6 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_an_empty_body_is_empty(coding: str) -> None:
    assert BodyDecoder(coding, LIMIT).decode(b"", is_last=True) == b""
    with pytest.raises(BodyError):
        BodyDecoder(coding, LIMIT).decode(b"x", is_last=True)


def test_pages_of_named_origins_may_use_the_server(client: httpx.Client) -> None:
    """A preflight request has no key; errors can be read, too."""
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    with httpx.Client(base_url=client.base_url) as page:
        allowed = page.options(GENERATE, headers=asks | {"Origin": ORIGIN})
        other = page.options(GENERATE, headers=asks | {"Origin": "https://other.example"})
        refused = page.post(GENERATE, content=BODY, headers={"Origin": ORIGIN})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
    assert refused.status_code == 401
    answer = client.post(GENERATE, content=BODY, headers={"Origin": ORIGIN})
    for found in (answer, refused):
        assert found.headers["access-control-allow-origin"] == ORIGIN
        assert "X-Request-Id" in found.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in client.post(GENERATE, content=BODY).headers


def test_all_origins_and_none(bundle: Bundles) -> None:
    asks = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    with serving({"letters": bundle("letters")}, cors_origins=("*",)) as client:
        assert client.options(GENERATE, headers=asks).headers["access-control-allow-origin"] == "*"
    with serving({"letters": bundle("letters")}) as client:
        answer = client.options(GENERATE, headers=asks)
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        *(GENERATE, f"{GENERATE}/", f"{GENERATE}//"),
        *(f"/at/here{GENERATE}", f"/at/here{GENERATE}/", f"/at/here/{GENERATE}"),
    ],
)
def test_a_proxy_may_keep_or_remove_its_prefix(client: httpx.Client, path: str) -> None:
    assert client.post(path, content=BODY).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", f"/health/{name}") for name in ("live", "ready")),
        *(
            ("GET", path)
            for path in ("/", "/page/page.js", "/metrics", "/languages", "/v1/bundles")
        ),
        *(("GET", f"/v1/models{rest}") for rest in ("", "/letters")),
        *(("GET", f"/v2{rest}") for rest in ("", "/health/ready", "/models/letters")),
        *(("POST", path) for path in (GENERATE, "/v1/embeddings", "/translate")),
        *(("POST", path) for path in ("/v2/models/letters/infer", "/v2/repository/index")),
    ],
)
def test_every_route_with_and_without_the_prefix(
    client: httpx.Client, method: str, path: str
) -> None:
    """The answer is the same, and that of a route: also if it is that a body is missing."""
    kept, removed = (client.request(method, prefix + path) for prefix in ("/at/here", ""))
    assert kept.status_code == removed.status_code
    assert kept.headers.get("content-type") == removed.headers.get("content-type")
    assert kept.status_code == (200 if method == "GET" or path.endswith("index") else 400)


@pytest.mark.parametrize("path", ["/v1", "/v2/models", "/metrics", "/page", "/health"])
def test_a_prefix_that_routes_have(bundle: Bundles, path: str) -> None:
    with pytest.raises(DragomanError, match=r"^root_path: expected a path that no route begins"):
        create_app({"letters": bundle("letters")}, ServerOptions(root_path=path), preload=False)


def test_redirects_and_links_keep_a_prefix(client: httpx.Client) -> None:
    with httpx.Client(base_url=client.base_url) as page:
        found = page.get("/at/here")
        assert found.status_code == 307
        assert found.headers["location"] == "/at/here/"
        text = page.get("/at/here/").text
        (link,) = re.findall('src="([^"]+)"', text)
        assert not link.startswith("/")
        assert page.get(f"/at/here/{link}").status_code == 200
        assert page.get("/at/here/v1/bundles").status_code == 401
        assert page.get("/at/hereafter").status_code == 401


@pytest.mark.parametrize(
    "options",
    [
        *({"cors_origins": (origin,)} for origin in ("app.example", "https://app.example/", "")),
        *({"root_path": path} for path in ("/", "here", "/here/", "/a b", "/../x?")),
    ],
    ids=str,
)
def test_wrong_origins_and_prefixes(options: dict[str, Any]) -> None:
    with pytest.raises(DragomanError, match=r"^(cors_origin|root_path): expected .* found "):
        ServerOptions(**options)


def spoken(client: httpx.Client, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the response to a request in bytes, read until the connection ends."""
    host = client.base_url.host, client.base_url.port or 80
    with socket.create_connection(host, timeout=60) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as answers:
            head, _, body = answers.read().partition(b"\r\n\r\n")
    return head.lower(), body


def request(version: str, body: dict[str, Any], *headers: str, method: str = "POST") -> bytes:
    content = json.dumps(body).encode()
    lines = [f"{method} {GENERATE} HTTP/{version}", "Host: x", "Authorization: Bearer secret"]
    lines += [f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


@pytest.mark.parametrize("stream", [False, True])
def test_old_clients_get_no_chunks(client: httpx.Client, stream: bool) -> None:
    body = {"model": "letters", "source": "dragoman", "stream": stream}
    head, found = spoken(client, request("1.0", body, "Connection: keep-alive"))
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert (b"content-length" in head) is not stream
    assert found.decode() == client.post(GENERATE, json=body).text


def test_a_client_may_wait_before_it_sends_a_body(client: httpx.Client) -> None:
    host = client.base_url.host, client.base_url.port or 80
    body = {"model": "letters", "source": "dragoman"}
    whole = request("1.1", body, "Expect: 100-continue", "Connection: close")
    head, _, content = whole.partition(b"\r\n\r\n")
    with socket.create_connection(host, timeout=60) as connection:
        connection.sendall(head + b"\r\n\r\n")
        with connection.makefile("rb") as answers:
            assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
            connection.sendall(content)
            assert b" 200 OK" in answers.read()


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/v1/chat/completions", 404, "expected a route of this server, found '/v1/chat/c"),
        ("GET", GENERATE, 405, "expected POST, found 'GET'"),
        ("POST", "/" + "x" * 5000, 404, "expected a route of this server, found '/xx"),
    ],
)
def test_unknown_routes_are_named(
    client: httpx.Client, method: str, path: str, status: int, words: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert words.replace("'/", "'/at/here/") in answer.json()["error"] and len(answer.text) < 200


@pytest.mark.parametrize("path", ["/health/live", "/v1/models", "/v2", "/metrics", "/languages"])
def test_a_head_is_that_of_a_get(client: httpx.Client, path: str) -> None:
    head, whole = client.head(path), client.get(path)
    assert head.status_code == whole.status_code == 200 and not head.content
    assert head.headers["content-type"] == whole.headers["content-type"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("application/json; charset=UTF-8", BODY),
        ("application/json", b"\xef\xbb\xbf" + BODY),
        ("application/x-www-form-urlencoded", BODY),
        ("text/plain", b" \r\n" + BODY),
        ("", BODY),
        ("application/json", BODY[:-1] + b', "num_beams": null, "prefix": null, "timeout": null}'),
    ],
)
def test_bodies_of_other_clients(client: httpx.Client, kind: str, content: bytes) -> None:
    expected = client.post(GENERATE, content=BODY).json()
    found = client.post(GENERATE, content=content, headers={"content-type": kind})
    assert (found.status_code, found.json()) == (200, expected)
