"""Full queues, deadlines, clients that disconnect, keys, metrics, logs."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.export import export_bundle
from dragoman.runtime import Model
from dragoman.runtime.decoding.running_batch import RunningBatch
from dragoman.runtime.serving.process import JsonFormatter

from ..zoo import letters_model, letters_tokenizers
from .conftest import optimized, serving

Bundles = Callable[[str], Path]


@pytest.fixture(scope="module")
def client(bundle: Bundles) -> Iterator[httpx.Client]:
    with serving({"letters": bundle("letters")}, max_body_bytes=4096) as client:
        yield client


class Gate:
    """Holds every step of a batch until it is let through, and counts cancelled requests."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.cancelled = threading.Semaphore(0), threading.Semaphore(0)
        self._open = threading.Semaphore(0)
        step, cancel = RunningBatch.step, RunningBatch.cancel

        def gated(loop: Any) -> Any:
            self.reached.release()
            self._open.acquire()
            return step(loop)

        def noting(loop: Any, decoding: Any) -> None:
            cancel(loop, decoding)
            self.cancelled.release()

        patch.setattr(RunningBatch, "step", gated)
        patch.setattr(RunningBatch, "cancel", noting)

    def let(self, steps: int) -> None:
        self._open.release(steps)

    def open(self) -> None:
        self.let(10_000)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


def test_requests_beyond_the_queue_get_retry_after(bundle: Bundles, gate: Gate) -> None:
    directories = {"letters": bundle("letters")}
    with (
        serving(directories, engine={"batch_size": 1, "max_waiting": 2}) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        ask = {"source": "dragoman"}
        running = pool.submit(client.post, "/v1/generate", json=ask)
        assert gate.reached.acquire(timeout=60)
        two = {"sources": ["a", "b"]}
        waiting = pool.submit(client.post, "/v1/generate", json=two)
        while 'dragoman_queue_length{model="letters"} 2.0' not in client.get("/metrics").text:
            pass  # until both wait
        refused = client.post("/v1/generate", json=ask)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["code"] == "overloaded"
        gate.open()
        assert running.result().status_code == waiting.result().status_code == 200


def test_a_request_of_many_inputs_is_queued_as_a_whole(bundle: Bundles) -> None:
    with serving(
        {"letters": bundle("letters")}, engine={"batch_size": 2, "max_waiting": 4}
    ) as client:
        answer = client.post("/v1/generate", json={"sources": ["dragoman"] * 20})
        assert len(answer.json()["results"]) == 20


def test_a_deadline_of_a_request(bundle: Bundles, gate: Gate) -> None:
    """The batch is held until the deadline of one of two requests has passed."""
    with serving({"letters": bundle("letters")}) as client, ThreadPoolExecutor(2) as pool:
        ask = {"source": "dragoman", "timeout": 1e-9}
        late = client.post("/v1/generate", json=ask)
        assert (late.status_code, late.json()["code"]) == (504, "timeout")
        assert late.json()["error"] == "the request was not done within 1e-09 s"
        patient = pool.submit(client.post, "/v1/generate", json={"source": "dragoman"})
        gate.open()
        assert patient.result().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_frees_its_rows(
    bundle: Bundles, gate: Gate, stream: bool
) -> None:
    with serving({"letters": bundle("letters")}) as client:
        body = json.dumps({"source": "dragoman", "min_new_tokens": 20, "stream": stream})
        host = client.base_url.host, client.base_url.port
        with socket.create_connection(host) as leaving:
            request = (
                f"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            leaving.sendall((request + body).encode())
            assert gate.reached.acquire(timeout=60)
            if stream:
                gate.let(2)
                assert b"200 OK" in leaving.recv(1 << 16)
        gone = 'outcome="gone",protocol="dragoman",route="/v1/generate"} 1.0'
        while gone not in client.get("/metrics").text:
            pass  # until the server has noticed it
        gate.open()
        assert gate.cancelled.acquire(timeout=60)
        assert client.post("/v1/generate", json={"source": "a"}).status_code == 200


def test_bodies_have_a_limit(client: httpx.Client) -> None:
    answer = client.post("/v1/generate", json={"source": "x" * 5000})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "expected a body of at most 4096 bytes" in answer.json()["error"]
    content = (b"x" * 1000 for _ in range(9))  # of unknown length
    answer = client.post("/v1/embeddings", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/generate", 405), ("DELETE", "/v1/models", 405)],
)
def test_unknown_routes_and_methods(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "code"}


def test_health_bundles_and_page(client: httpx.Client) -> None:
    assert client.get("/health/live").json() == {"live": True}
    assert client.get("/health/ready").json() == {"ready": True}
    (described,) = client.get("/v1/bundles").json()["bundles"]
    assert described["name"] == "letters"
    assert described["shows_attention"]
    assert "generate" in described["methods"]
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]


KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def locked(bundle: Bundles) -> Iterator[httpx.Client]:
    with serving({"letters-en-xx": bundle("letters")}, api_keys=KEYS) as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/generate", "/v2/models/letters-en-xx/infer", "/metrics"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic first-key", "first-key", "Bearer"])
def test_requests_without_a_valid_key(locked: httpx.Client, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = locked.post(path, json={"source": "a"}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_with_a_key(locked: httpx.Client) -> None:
    headers = {"Authorization": "Bearer first-key"}
    assert locked.post("/v1/generate", json={"source": "a"}, headers=headers).status_code == 200
    for path in ("/", "/health/live", "/health/ready", "/v2/health/ready"):
        assert locked.get(path).status_code == 200
    body = {"q": "a", "source": "en", "target": "xx"}
    assert locked.post("/translate", json=body).status_code == 401
    assert locked.post("/translate", json=body | {"api_key": "wrong"}).status_code == 401
    assert locked.post("/translate", data=body | {"api_key": KEYS[1]}).status_code == 200
    assert locked.post("/translate", json=body, headers=headers).status_code == 200


def test_metrics(bundle: Bundles, model: Callable[[str], Model]) -> None:
    words = ["dragoman", "a", "transformer"]
    tokens = sum(len(result.tokens) for result in model("letters").generate(words))
    with serving({"letters": bundle("letters")}) as client:
        for word in words:
            client.post("/v1/generate", json={"source": word})
        client.post("/v1/generate", json={"source": 1})
        text = client.get("/metrics").text
    found = dict(re.findall(r"^(dragoman_\S+) (\S+)$", text, re.MULTILINE))
    of = '{model="letters"}'
    assert float(found[f"dragoman_tokens_total{of}"]) == tokens
    assert float(found[f"dragoman_sources_total{of}"]) == 3
    for name in ("queue_seconds", "time_to_first_token_seconds", "encoder_seconds"):
        assert float(found[f"dragoman_{name}_count{of}"]) == 3
    assert float(found[f"dragoman_decoder_step_seconds_count{of}"]) > tokens / 3
    assert found[f"dragoman_model_loaded{of}"] == "1.0"
    assert found[f"dragoman_rows_in_use{of}"] == found[f"dragoman_queue_length{of}"] == "0.0"
    names = 'model="letters",outcome="{}",protocol="dragoman",route="/v1/generate"'
    for outcome, count in (("ok", "3.0"), ("client_error", "1.0")):
        assert found[f"dragoman_requests_total{{{names.format(outcome)}}}"] == count
    assert "process_resident_memory_bytes" in text


def test_metrics_count_unknown_characters(tmp_path: Path) -> None:
    files, source = letters_tokenizers(tmp_path), tmp_path / "source_tokenizer.json"
    tokenizer = json.loads(source.read_text(encoding="utf-8"))
    known = tokenizer["model"]["vocab"]
    tokenizer["model"] = {"type": "BPE", "vocab": known, "merges": [], "unk_token": "<pad>"}
    source.write_text(json.dumps(tokenizer), encoding="utf-8")
    options: dict[str, Any] = {"name": "letters", "tokenizers": files}
    bundle = optimized(
        lambda into: export_bundle(letters_model(), into, **options), tmp_path / "letters"
    )
    with serving({"letters": bundle}) as client:
        for body in ({"sources": ["a漢b", "漢ß", "ab"]}, {"source": "ß", "stream": True}):
            assert client.post("/v1/generate", json=body).status_code == 200
        text = client.get("/metrics").text
    assert 'dragoman_unknown_characters_total{model="letters"} 4.0' in text


@pytest.mark.parametrize("log_texts", [False, True])
def test_logs_show_texts_only_with_log_texts(
    bundle: Bundles, caplog: pytest.LogCaptureFixture, log_texts: bool
) -> None:
    caplog.set_level(logging.INFO, "dragoman.serving")
    with serving({"letters": bundle("letters")}, log_texts=log_texts) as client:
        headers = {"X-Request-Id": "my-own"}
        answer = client.post("/v1/generate", json={"source": "secretword"}, headers=headers)
        other = client.post(
            "/v1/generate", json={"source": "a"}, headers={"X-Request-Id": 'two "words"'}
        )
    assert answer.headers["X-Request-Id"] == "my-own"
    assert re.fullmatch("[0-9a-f]{16}", other.headers["X-Request-Id"])
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    (line,) = [line for line in lines if line.get("request_id") == "my-own"]
    assert (line["route"], line["status"], line["level"]) == ("/v1/generate", 200, "info")
    assert any("secretword" in json.dumps(line) for line in lines) == log_texts
