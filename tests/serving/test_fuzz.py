"""Any body gets an answer in the form of its protocol, without a failure of the server.

The next valid request is answered as before.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.options import EngineOptions, ServerOptions

from .bert_bundles import make_berts
from .hostile_bodies import (
    FORM,
    Body,
    changed,
    contents,
    each_changed,
    each_form,
    form,
    forms,
    written,
)
from .valid_bodies import FORMS, ROUTES, WAV, IsError, binary, is_plain

pytestmark = pytest.mark.filterwarnings(
    # Starlette leaves the file of a form that ends early to the garbage collector.
    "ignore:Unclosed file <tempfile.SpooledTemporaryFile:ResourceWarning"
)
TRIES = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
JSON = {"content-type": "application/json"}


class Server:
    """An application without a socket."""

    def __init__(self, app: Any, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://server"
        )
        self._expected: dict[str, Any] = {}

    def post(self, path: str, **request: Any) -> httpx.Response:
        return self._runner.run(self._client.post(path, **request))

    def try_one(self, path: str, is_error: IsError, **hostile: Any) -> None:
        answer = self.post(path, **hostile)
        words = f"{answer.status_code} {answer.text:.300} {hostile!r:.300}"
        late = answer.status_code == 504 and b"timeout" in hostile["content"]
        assert answer.status_code < 500 or late, words
        assert "internal_error" not in answer.text and "backend_error" not in answer.text, words
        assert answer.status_code < 400 or is_error(answer.json()), words
        assert answer.status_code < 400 or len(answer.text) < 1200, words

    def check(self, path: str, **good: Any) -> None:
        """Check that a good request is answered as the first time."""
        live = self._runner.run(self._client.get("/health/live"))
        assert live.status_code == 200
        found = self._good(path, good)
        assert found == self._expected.setdefault(f"{path} {good}", found)

    def _good(self, path: str, good: dict[str, Any]) -> Any:
        answer = self.post(path, **good)
        assert answer.status_code == 200, answer.text
        if not answer.headers["content-type"].startswith("application/json"):
            return answer.text
        found = answer.json()
        if isinstance(found, list):
            return found
        return {k: v for k, v in found.items() if k not in ("id", "created")}


@pytest.fixture(scope="module")
def app(bundle: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    names = {"letters-en-xx": "letters", "speech": "speech", "verses": "verses"}
    directories = {name: bundle(of) for name, of in names.items()}
    root = tmp_path_factory.mktemp("heads")
    directories |= make_berts(root)
    engine = EngineOptions(workers=1, threads=1, max_new_tokens=6)
    return create_app(directories, ServerOptions(engine=engine))


@pytest.fixture(scope="module")
def server(app: Any) -> Iterator[Server]:
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        yield Server(app, runner)
        runner.run(lifespan.__aexit__(None, None, None))
    gc.collect()


@pytest.mark.parametrize("name", ROUTES)
@TRIES
@given(data=st.data())
def test_json(server: Server, name: str, data: st.DataObject) -> None:
    route = ROUTES[name]
    content = data.draw(contents(route.bodies, route.extras))
    server.check(route.path, content=written(route.bodies[0]), headers=JSON)
    server.try_one(route.path, route.is_error, content=content, headers=JSON)
    server.check(route.path, content=written(route.bodies[0]), headers=JSON)


@pytest.mark.parametrize("name", ROUTES)
def test_every_field(server: Server, name: str) -> None:
    route = ROUTES[name]
    server.check(route.path, content=written(route.bodies[0]), headers=JSON)
    for body in each_changed(route.bodies, route.extras):
        server.try_one(route.path, route.is_error, content=written(body), headers=JSON)
    server.check(route.path, content=written(route.bodies[0]), headers=JSON)


@pytest.mark.parametrize("path", FORMS)
@TRIES
@given(data=st.data())
def test_forms(server: Server, path: str, data: st.DataObject) -> None:
    is_error, parts, extras = FORMS[path]
    kind, content = data.draw(forms(parts, extras))
    server.check(path, content=form(parts), headers={"content-type": FORM})
    server.try_one(path, is_error, content=content, headers={"content-type": kind})
    server.check(path, content=form(parts), headers={"content-type": FORM})


@pytest.mark.parametrize("path", FORMS)
def test_every_part(server: Server, path: str) -> None:
    is_error, parts, _ = FORMS[path]
    server.check(path, content=form(parts), headers={"content-type": FORM})
    for kind, content in each_form(parts):
        server.try_one(path, is_error, content=content, headers={"content-type": kind})
    server.check(path, content=form(parts), headers={"content-type": FORM})


LENGTHS = (b"", b"-1", b"0", b"+5", b"1e3", b"\xb2", b"9" * 5000, b"99", b"two")


@pytest.mark.parametrize("model", ["letters-en-xx", "speech"])
@TRIES
@given(data=st.data())
def test_binary_tensors(server: Server, model: str, data: st.DataObject) -> None:
    head, content = binary("audio", WAV) if model == "speech" else binary("text", b"a", b"it")

    def request(head: Body, length: bytes | None, content: bytes) -> dict[str, Any]:
        text = written(head)
        size = str(len(text)).encode() if length is None else length
        return {
            "content": text + content,
            "headers": {b"inference-header-content-length": size},
        }

    hostile = request(
        data.draw(st.just(head) | changed([head], ("outputs", "parameters"))),
        data.draw(st.sampled_from((*[None] * 20, *LENGTHS))),
        data.draw(st.just(content) | st.binary(max_size=40)),
    )
    path, good = f"/v2/models/{model}/infer", request(head, None, content)
    server.check(path, **good)
    server.try_one(path, is_plain, **hostile)
    server.check(path, **good)


def test_every_route_with_a_body_is_tried(app: Any) -> None:
    """The routes of repositories ignore their bodies."""
    tried = [*(route.path for route in ROUTES.values()), *FORMS]
    for route in app.routes:
        if "POST" in (getattr(route, "methods", None) or ()) and not route.path.startswith(
            "/v2/repository/"
        ):
            assert any(route.path_regex.match(path) for path in tried), route.path
