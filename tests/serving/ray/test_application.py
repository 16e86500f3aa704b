"""Replicas of the server on Ray Serve."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from dragoman import DragomanError
from dragoman.runtime import Model
from dragoman.runtime.decoding.results import result_data
from dragoman.runtime.serving.options import ReplicaOptions
from dragoman.runtime.serving.ray import app, application

pytestmark = pytest.mark.ray

WORDS = ["dragoman", "read", "", "transformer", "a", "interpreter", "?", "encoder"]
LONG = 20
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "ray.md"


@pytest.fixture(scope="module")
def address(cluster: None) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.fixture
def client(address: str, bundle: Path) -> Iterator[httpx.Client]:
    """Of an application with one replica."""
    serve.run(app({"bundles": str(bundle), "min_replicas": "1", "max_replicas": "2"}))
    with httpx.Client(base_url=address, timeout=120) as client:
        yield client
    serve.delete("default")


def plain(model: Model, words: list[str], **options: Any) -> Any:
    """What the library says, as JSON."""
    return json.loads(json.dumps([result_data(r) for r in model.generate(words, **options)]))


def test_answers_equal_those_of_the_library(client: httpx.Client, model: Model) -> None:
    expected = plain(model, WORDS, num_beams=2)

    def ask(word: str) -> Any:
        answer = client.post("/v1/generate", json={"source": word, "num_beams": 2})
        return answer.json()["results"][0]

    with ThreadPoolExecutor(len(WORDS)) as threads:
        found = list(threads.map(ask, WORDS))
    for one, other in zip(found, expected, strict=True):
        assert [one[k] for k in ("text", "tokens", "error")] == [
            other[k] for k in ("text", "tokens", "error")
        ]
        assert one["log_probability"] == pytest.approx(other["log_probability"], abs=1e-4)


def test_the_same_routes(client: httpx.Client, bundle: Path) -> None:
    assert client.get("/health/ready").json() == {"ready": True}
    assert client.get("/v1/bundles").json()["bundles"][0]["name"] == bundle.name
    assert client.get(f"/v2/models/{bundle.name}/ready").status_code == 200
    assert "dragoman_requests_total" in client.get("/metrics").text
    assert "<!doctype html>" in client.get("/").text
    refused = client.post("/v1/generate", json={"source": "a", "nonsense": 1})
    assert refused.status_code == 400 and refused.json()["code"] == "invalid_request"


def test_tokens_stream(client: httpx.Client, model: Model) -> None:
    body = {"source": "dragoman", "stream": True}
    with client.stream("POST", "/v1/generate", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    *tokens, end = [json.loads(line.removeprefix("data: ")) for line in lines]
    (expected,) = model.generate(["dragoman"])
    assert [t["id"] for t in tokens if not t["is_end"]] == list(expected.tokens)
    assert end["text"] == expected.text


def test_a_killed_replica_is_replaced(client: httpx.Client, model: Model) -> None:
    (before,) = replica_names()
    ray.kill(ray.get_actor(before, namespace="serve"))
    answer = client.post("/v1/generate", json={"source": "dragoman"})
    assert answer.json()["results"][0]["text"] == plain(model, ["dragoman"])[0]["text"]
    assert before not in replica_names()


def test_a_removed_replica_finishes_its_requests(client: httpx.Client) -> None:
    body = {"source": "dragoman", "stream": True, "min_new_tokens": LONG}
    with client.stream("POST", "/v1/generate", json=body) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        serve.delete("default")
        rest = list(lines)
    assert first.startswith("data: ")
    assert "event: end" in rest
    assert not any(line.startswith("event: error") for line in rest)


def test_numbers_and_sizes_of_replicas() -> None:
    made = app(
        {
            "bundles": "/models/one,/models/two",
            "min_replicas": "2",
            "max_replicas": 5,
            "target_ongoing_requests": "12.5",
            "upscale_delay": 3,
            "downscale_delay": 40,
            "workers": "2",
            "threads": "3",
            "batch_size": "16",
            "max_waiting": "8",
            "drain_seconds": "7",
            "health_seconds": 4,
        }
    )
    deployment = made._bound_deployment
    config = deployment._deployment_config
    scaling = config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 5)
    assert scaling.target_ongoing_requests == 12.5
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (3, 40)
    assert deployment.ray_actor_options["num_cpus"] == 6
    assert (config.max_ongoing_requests, config.max_queued_requests) == (40, 8)
    assert config.graceful_shutdown_timeout_s == 7
    assert config.health_check_period_s == 4


def test_the_default_target_is_half_of_the_rows(bundle: Path) -> None:
    made = application([bundle], replicas=ReplicaOptions(max_replicas=2))
    scaling = made._bound_deployment._deployment_config.autoscaling_config
    assert scaling.target_ongoing_requests == 32


def test_health_is_readiness() -> None:
    import asyncio
    from types import SimpleNamespace

    from dragoman.runtime.serving.ray.application import Server

    server: Any = Server()
    host = SimpleNamespace(name="g2p-en", alive=True)
    server.app = SimpleNamespace(state=SimpleNamespace(models=SimpleNamespace(all=[host])))
    asyncio.run(server.check_health())
    host.alive = False
    with pytest.raises(DragomanError, match="not ready: the device of g2p-en was lost"):
        asyncio.run(server.check_health())


def blocks(language: str) -> list[str]:
    """Of the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_settings_in_the_guide_are_ray_serves() -> None:
    from ray.serve.schema import ServeDeploySchema

    yaml: Any = importlib.import_module("yaml")
    (text,) = blocks("yaml")
    (found,) = ServeDeploySchema.model_validate(yaml.safe_load(text)).applications
    module, _, name = found.import_path.partition(":")
    made = getattr(importlib.import_module(module), name)(found.args)
    scaling = made._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 8)


def test_the_call_in_the_guide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = list[Any]()
    monkeypatch.setattr(serve, "run", run.append)
    (code,) = blocks("python")
    (tmp_path / "code.py").write_text(code, encoding="utf-8")
    runpy.run_path(str(tmp_path / "code.py"))
    deployment = run[0]._bound_deployment
    assert deployment.ray_actor_options["num_cpus"] == 2
    assert deployment._deployment_config.autoscaling_config.max_replicas == 8


def replica_names() -> list[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in actors]
    return [name for name in names if name.startswith("SERVE_REPLICA") and "#dragoman#" in name]
