"""A Hugging Face Hub on this machine: the part of its protocol that `huggingface_hub` uses to read
models, as the documentation of the hub's API and its answers to `curl` show it."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Refusal = tuple[int, dict[str, str]]
"""A status, and the headers by which clients tell why."""

NO_SUCH_MODEL: Refusal = (401, {"X-Error-Code": "RepoNotFound"})
NO_SUCH_REVISION: Refusal = (404, {"X-Error-Code": "RevisionNotFound"})
NO_SUCH_FILE: Refusal = (404, {"X-Error-Code": "EntryNotFound"})
GATED: Refusal = (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
FORBIDDEN: Refusal = (403, {"X-Error-Message": "Your token may not read this"})
UNAUTHORIZED: Refusal = (401, {"X-Error-Message": "Invalid credentials in Authorization header"})
FAILING: Refusal = (500, {})


@dataclass
class Model:
    """A repository: the files of each commit, and what its branches and tags name."""

    commits: dict[str, Mapping[str, bytes]]
    names: dict[str, str]
    refusal: Refusal | None = None


@dataclass
class Hub:
    """
    Attributes:
        fetched: the files that were asked for, `revision/path`
        requests: how many there were, of any kind
        cut: bytes of a file after which the connection breaks, and every other is refused
    """

    models: dict[str, Model] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    requests: int = 0
    cut: int | None = None
    endpoint: str = ""

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """No connection is accepted from now on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that has gone
            super().handle_error(request, client_address)


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            words = urlsplit(self.path).path.strip("/").split("/")
            api = words[:2] == ["api", "models"]
            if words[0] == "api" and not api:  # what the library asks about itself
                return self.refuse(NO_SUCH_MODEL)
            hub.requests += 1
            owner, name, kind, revision, *path = map(unquote, words[2:] if api else words)
            model = hub.models.get(f"{owner}/{name}")
            if model is None:
                return self.refuse(NO_SUCH_MODEL)
            if model.refusal is not None:
                return self.refuse(model.refusal)
            commit = model.names.get(revision, revision)
            if commit not in model.commits:
                return self.refuse(NO_SUCH_REVISION)
            files = model.commits[commit]
            if api:
                return self.describe(f"{owner}/{name}", kind, commit, files)
            if "/".join(path) not in files:
                return self.refuse(NO_SUCH_FILE)
            return self.send_file(commit, "/".join(path), files["/".join(path)])

        def describe(self, name: str, kind: str, commit: str, files: Mapping[str, bytes]) -> None:
            answer: Any = {
                "id": name,
                "sha": commit,
                "siblings": [{"rfilename": path} for path in files],
            }
            if kind == "tree":
                answer = [
                    {"type": "file", "path": path, "size": len(data), "oid": etag(data)}
                    for path, data in files.items()
                ]
            self.respond(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

        def send_file(self, commit: str, path: str, data: bytes) -> None:
            if hub.cut is not None and hub.cut < 0:
                self.close_connection = True
                return
            headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": commit}
            if self.command == "HEAD":
                self.respond(200, headers, data)
                return
            hub.fetched.append(f"{commit}/{path}")
            first = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
            if first:
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
            if hub.cut is not None and len(data) > hub.cut:
                headers["Content-Length"] = str(len(data) - first)
                self.respond(200, headers, data[: hub.cut])
                hub.cut = -1
            else:
                self.respond(206 if first else 200, headers, data[first:])

        def refuse(self, refusal: Refusal) -> None:
            self.respond(*refusal, b"")

        def respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def etag(data: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
