"""Options of a server and its replicas, read from plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.runtime.serving.options import (
    EngineOptions,
    ListenOptions,
    ReplicaOptions,
    ServerOptions,
    read_options,
)

BUNDLES = {"bundles": "/models/one"}


def test_defaults() -> None:
    read = read_options(BUNDLES)
    assert read.bundles == {"one": Path("/models/one")}
    assert read.server == ServerOptions() and read.replicas == ReplicaOptions()


@pytest.mark.parametrize("bundles", ["/a/one,/b/two", ["/a/one", "/b/two"]])
def test_strings_and_numbers_are_read_alike(tmp_path: Path, bundles: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n", encoding="utf-8")
    values: dict[str, Any] = {
        "workers": 2,
        "threads": 3,
        "batch_size": 16,
        "max_waiting": 8,
        "max_new_tokens": 99,
        "max_body": 2,
        "max_audio": 60.5,
        "max_open_audio": 600,
        "timeout": 5,
        "idle_unload": 300,
        "backend": "onnxruntime",
        "api_key_file": keys,
        "log_texts": True,
        "cors_origin": "https://a.example",
        "root_path": "/at",
        "trusted_proxies": "10.0.0.0/8,unix",
        "allow_token_ids": True,
        "min_replicas": 0,
        "max_replicas": 9,
        "target_ongoing_requests": 2.5,
        "upscale_delay": 0,
        "downscale_delay": 1.5,
        "health_seconds": 2,
        "drain_seconds": 0,
        "gpus": 0.5,
    }
    read = read_options({"bundles": bundles} | values)
    assert read == read_options({"bundles": bundles} | {k: str(v) for k, v in values.items()})
    assert read.bundles == {"one": Path("/a/one"), "two": Path("/b/two")}
    assert read.server == ServerOptions(
        engine=EngineOptions(
            workers=2,
            threads=3,
            batch_size=16,
            max_waiting=8,
            max_new_tokens=99,
            backend="onnxruntime",
        ),
        idle_unload=300,
        timeout=5,
        max_body_bytes=2 << 20,
        max_audio=60.5,
        max_open_audio=600,
        api_keys=("one", "two"),
        log_texts=True,
        cors_origins=("https://a.example",),
        root_path="/at",
        trusted_proxies=("10.0.0.0/8", "unix"),
        allow_token_ids=True,
    )
    assert read.replicas == ReplicaOptions(
        min_replicas=0,
        max_replicas=9,
        target_ongoing_requests=2.5,
        upscale_delay=0,
        downscale_delay=1.5,
        health_seconds=2,
        drain_seconds=0,
        gpus=0.5,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "^bundles: expected paths of bundles, found none$"),
        (BUNDLES | {"max_replica": 2}, "^unknown: max_replica; expected any of bundles, workers"),
        (BUNDLES | {"max_replica": 2}, "; the nearest is max_replicas$"),
        (BUNDLES | {"drain_seconds": 86_401}, "^drain_seconds: expected 0 to 86400 seconds, a day"),
        (BUNDLES | {"max_replicas": "two"}, "^max_replicas: expected an integer of at least 1, fo"),
        (BUNDLES | {"max_replicas": 0}, "^max_replicas: expected an integer of at least 1, found "),
        (BUNDLES | {"max_replicas": 1.5}, "^max_replicas: expected an integer of at least 1, fou"),
        (BUNDLES | {"min_replicas": -1}, "^min_replicas: expected an integer of at least 0, foun"),
        (BUNDLES | {"min_replicas": 5}, "^min_replicas, max_replicas: expected .* found 5 and 4$"),
        (BUNDLES | {"timeout": "nan"}, "^timeout: expected a number above 0, found 'nan'$"),
        (BUNDLES | {"timeout": 0}, "^timeout: expected a number above 0, found 0$"),
        (BUNDLES | {"gpus": True}, "^gpus: expected a number of at least 0, found True$"),
        (BUNDLES | {"log_texts": "yes"}, "^log_texts: expected true or false, found 'yes'$"),
        (BUNDLES | {"api_key_file": "/none"}, "^/none: expected a file of keys"),
        (BUNDLES | {"cors_origin": "*,a.example"}, "^cors_origin: expected .*, found 'a.example'$"),
        (BUNDLES | {"trusted_proxies": "proxy"}, "^trusted_proxies: expected .*, found 'proxy'"),
        (BUNDLES | {"root_path": "here"}, "^root_path: expected a path .*, found 'here'$"),
        ({"bundles": 3}, "^bundles: expected paths, found 3$"),
        ({"bundles": "/a/one,/b/one"}, "^expected bundles of different names"),
    ],
)
def test_invalid_options(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DragomanError, match=message):
        read_options(values)


@pytest.mark.parametrize("seconds", [-1, 86_401, float("nan"), float("inf"), True, "9"])
@pytest.mark.parametrize("kind", [ListenOptions, ReplicaOptions])
def test_a_time_to_drain_is_at_most_a_day(kind: type, seconds: Any) -> None:
    with pytest.raises(DragomanError, match=r"^drain_seconds: expected 0 to 86400 sec"):
        kind(drain_seconds=seconds)
    assert kind(drain_seconds=86_400).drain_seconds == 86_400
