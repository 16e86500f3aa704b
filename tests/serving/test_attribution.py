"""Logs and metrics say which model, protocol, route and client a request is of."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman import __version__
from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.options import EngineOptions, ServerOptions

from ..small_bundle import small_bundle

KEY = {"Authorization": "Bearer secret"}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

KNOWN: list[tuple[str, str, str, Any]] = [
    ("dragoman", "/v1/generate", "/v1/generate", {"model": "small", "source": [1, 2, 3]}),
    ("dragoman", "/v1/generate", "/v1/generate", {"source": [1], "num_beams": 0}),
    ("dragoman", "/v1/encode", "/v1/encode", {"model": "small", "texts": ["a"]}),
    ("dragoman", "/v1/attention", "/v1/attention", {"model": "small", "source": [1]}),
    ("openai", "/v1/completions", "/v1/completions", {"model": "small", "prompt": "a"}),
    ("openai", "/v1/embeddings", "/v1/embeddings", {"model": "small", "input": "a"}),
    ("openai", "/v1/models/small", "/v1/models/{model}", None),
    ("kserve", "/v2/models/small", "/v2/models/{model}", None),
    ("kserve", "/v2/models/small/infer", "/v2/models/{model}/infer", {"inputs": []}),
    ("libretranslate", "/translate", "/translate", {"q": "a", "target": "b", "model": "small"}),
]
"""Requests of a model, as they are right or wrong: protocol, path, route and body; None: GET."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("small"), 9)


Ask = Callable[..., tuple[list[httpx.Response], Series]]


@pytest.fixture
def ask(directory: Path) -> Ask:
    """Sends requests to a new server, and returns the responses and its metrics."""

    def ask(
        *calls: tuple[str, Any], headers: Mapping[str, str] = KEY, **options: Any
    ) -> tuple[list[httpx.Response], Series]:
        engine = EngineOptions(workers=1, threads=1)
        values: dict[str, Any] = {"api_keys": ("secret",), "engine": engine} | options
        app = create_app({"small": directory}, ServerOptions(**values), preload=False)

        async def ask() -> tuple[list[httpx.Response], Series]:
            transport = httpx.ASGITransport(app, client=("10.0.0.2", 40000))
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://server") as client,
            ):
                answers = [
                    await client.request(
                        "GET" if body is None else "POST", path, json=body, headers=headers
                    )
                    for path, body in calls
                ]
                text = (await client.get("/metrics", headers=KEY)).text
            samples = [s for f in text_string_to_metric_families(text) for s in f.samples]
            return answers, {(s.name, frozenset(s.labels.items())): s.value for s in samples}

        return asyncio.run(ask())

    return ask


def requests_of(series: Series) -> dict[tuple[str, ...], float]:
    """Numbers of requests by model, protocol, route and outcome."""
    names = ("model", "protocol", "route", "outcome")
    counted = {}
    for (name, labels), value in series.items():
        if name == "dragoman_requests_total":
            assert dict(labels).keys() == set(names)
            counted[tuple(dict(labels)[each] for each in names)] = value
    return counted


def fields_of(caplog: pytest.LogCaptureFixture, *names: str) -> list[tuple[Any, ...]]:
    records = [vars(record) for record in caplog.records if record.message == "request"]
    return [tuple(record[name] for name in names) for record in records]


def test_requests_name_model_and_protocol(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dragoman.serving")
    answers, series = ask(*((path, body) for _, path, _, body in KNOWN))
    assert answers[0].status_code == 200 and answers[1].status_code == 400
    expected = [("small", protocol, route) for protocol, _, route, _ in KNOWN]
    assert fields_of(caplog, "model", "protocol", "route") == expected
    counted = requests_of(series)
    assert {labels[:3] for labels in counted} == set(expected)
    assert counted["small", "dragoman", "/v1/generate", "ok"] == 1
    assert counted["small", "dragoman", "/v1/generate", "client_error"] == 1
    timed = {labels for name, labels in series if name == "dragoman_request_seconds_count"}
    names = ("model", "protocol", "route")
    assert timed == {frozenset(zip(names, labels, strict=True)) for labels in expected}


def test_requests_of_no_model(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dragoman.serving")
    unknown = {"model": "other", "source": "a", "input": "a"}
    paths = ("/v1/generate", "/v1/embeddings", "/v2/models/other/infer", "/v2/models/other")
    _, series = ask(*((path, unknown) for path in paths), ("/", None), ("/v1/models", None))
    expected = [
        ("dragoman", "/v1/generate"),
        ("openai", "/v1/embeddings"),
        ("kserve", "/v2/models/{model}/infer"),
        ("kserve", "/v2/models/{model}"),  # the wrong method, too
        ("page", "/"),
        ("openai", "/v1/models"),
    ]
    assert fields_of(caplog, "model", "protocol", "route") == [(None, *each) for each in expected]
    assert {labels[:3] for labels in requests_of(series)} == {("", *each) for each in expected}


def test_refused_requests_are_counted_under_their_route(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman.serving")
    answers, series = ask(*((path, body) for _, path, _, body in KNOWN), headers={})
    assert {answer.status_code for answer in answers} == {401}
    expected = [(None, protocol, route, 401) for protocol, _, route, _ in KNOWN]
    assert fields_of(caplog, "model", "protocol", "route", "status") == expected
    counted = requests_of(series)
    assert counted.keys() == {("", *each[1:3], "client_error") for each in expected}
    assert sum(counted.values()) == len(KNOWN)


def test_strangers_make_no_labels(ask: Ask) -> None:
    """What an unauthorized client makes up is one series, whatever it sends."""
    made_up = [(f"/x{n}/y", None if n % 2 else {"model": f"m{n}"}) for n in range(20)]
    models = [(f"/v1/models/m{n}", None) for n in range(20)]
    answers, series = ask(*made_up, *models, headers={"X-Forwarded-For": "203.0.113.7"})
    assert {answer.status_code for answer in answers} == {401}
    assert requests_of(series) == {
        ("", "dragoman", "other", "client_error"): 20,
        ("", "openai", "/v1/models/{model}", "client_error"): 20,
    }


@pytest.mark.parametrize(
    ("trusted", "client"), [((), "10.0.0.2"), (("10.0.0.0/8",), "2001:db8::7")]
)
def test_the_log_names_the_client(
    ask: Ask, caplog: pytest.LogCaptureFixture, trusted: tuple[str, ...], client: str
) -> None:
    caplog.set_level(logging.INFO, "dragoman.serving")
    forwarded = {"X-Forwarded-For": "198.51.100.1, 2001:db8::7"}
    calls = [("/v1/models", None), ("/v1/generate", {"source": [1], "num_beams": 0})]
    ask(*calls, headers=KEY | forwarded, trusted_proxies=trusted)
    ask(*calls, headers=forwarded, trusted_proxies=trusted)  # refused
    assert fields_of(caplog, "client") == [(client,)] * 4


def test_metrics_say_what_was_built(ask: Ask) -> None:
    _, series = ask()
    ((labels, value),) = ((k[1], v) for k, v in series.items() if k[0] == "dragoman_build_info")
    assert value == 1
    assert (
        dict(labels).items()
        >= {
            "version": __version__,
            "python": platform.python_version(),
            "onnxruntime": metadata.version("onnxruntime"),
            "tokenizers": metadata.version("tokenizers"),
        }.items()
    )


def test_metrics_have_no_times_of_creation(ask: Ask) -> None:
    _, series = ask(("/v1/models", None))
    assert not [name for name, _ in series if name.endswith("_created")]
