"""Servers on GPUs have a loop and a copy of the weights for each device, also if one is lost.

GPUs are doubles, on which graphs are computed as ONNX Runtime's CUDA provider does.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from dragoman.benchmarks.arrangement import arrangements_on_gpu, try_arrangements
from dragoman.cli.main import cli
from dragoman.errors import DragomanError
from dragoman.runtime import AsyncModel, Bundle, Model, UnfinishedError, backends, loading
from dragoman.runtime.backends import gpu_index
from dragoman.runtime.backends.cuda.device import RESTART
from dragoman.runtime.backends.interface import Backend
from dragoman.runtime.serving import arrangement as arrangement_module
from dragoman.runtime.serving.engine.engine import DecodingEngine
from dragoman.runtime.serving.options import EngineOptions, read_options

from ..device_double import DoubleDevice
from ..provider_double import opened
from .conftest import serving

GIB = 1 << 30
LOST = "CUDA failure 719: unspecified launch failure"
REASON = f"{LOST}: {RESTART}"
TEXTS = [letter * number for letter in "abcdefgh" for number in (1, 5, 9)]


@pytest.fixture
def neutral(bundle: Callable[[str], Path]) -> Path:
    return bundle("letters").with_name("letters-neutral")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DoubleDevice]]:
    """Two GPUs, which `load` opens; everything is freed in the end on those that are not lost."""
    devices = DoubleDevice(index=0), DoubleDevice(index=1)

    def open_backend(bundle: Bundle, name: Any, threads: Any, device: Any, **more: Any) -> Backend:
        if name == "onnxruntime":
            return backends.open_backend(bundle, name, threads, device, **more)
        return opened(bundle, devices[gpu_index(device) or 0]).backend

    monkeypatch.setattr(loading, "open_backend", open_backend)
    monkeypatch.setattr(arrangement_module, "usable_cores", lambda: 16)
    kept = list(devices)
    yield kept
    for device in kept:
        device.assert_empty()


def on(*devices: str) -> dict[str, Any]:
    return {
        "engine": {"workers": None, "threads": None, "backend": "onnxruntime-cuda"}
        | {"check": "never", "devices": devices}
    }


@pytest.mark.parametrize("devices", [(), ("cuda:1",)])
def test_a_gpu_has_one_loop_and_one_copy_of_the_weights(
    neutral: Path, gpus: list[DoubleDevice], devices: tuple[str, ...]
) -> None:
    used, unused = gpus if not devices else reversed(gpus)
    with serving({"letters": neutral}, **on(*devices)) as client:
        answer = client.post("/v1/generate", json={"sources": TEXTS})
        assert answer.status_code == 200
        assert len(used.streams) == 1, "the sessions of a stream have the weights"
        assert not unused.log


def test_each_device_has_a_loop_and_outputs_are_those_of_the_processor(
    neutral: Path, gpus: list[DoubleDevice]
) -> None:
    names = ("cuda:0", "cuda:1")

    async def main() -> list[Any]:
        options = on(*names)["engine"]
        async with await AsyncModel.load(neutral, **options, batch_size=4) as model:
            return await model.generate(TEXTS, max_new_tokens=12)

    found = [result.tokens for result in asyncio.run(main())]
    with loading.load(neutral, threads=1, backend="onnxruntime", check="never") as model:
        assert found == [result.tokens for result in model.generate(TEXTS, max_new_tokens=12)]
    assert all("execute" in device.log for device in gpus)


def test_the_requests_of_a_lost_device_fail_and_other_devices_go_on(
    neutral: Path, gpus: list[DoubleDevice]
) -> None:
    body = {"source": "ab"}
    with serving({"letters": neutral}, **on("cuda:0", "cuda:1")) as client:
        expected = client.post("/v1/generate", json=body).json()
        lose_first(gpus)
        answer = client.post("/v1/generate", json={"sources": TEXTS})
        assert answer.status_code == 503
        assert answer.json() == {"error": f"onnxruntime failed: {REASON}", "code": "backend_error"}
        assert {client.get(f"/health/{path}").status_code for path in ("live", "ready")} == {503}
        for _ in range(5):
            assert client.post("/v1/generate", json=body).json() == expected


def test_targets_are_scored_on_a_device_that_is_not_lost(
    neutral: Path, gpus: list[DoubleDevice]
) -> None:
    async def main() -> tuple[int, int]:
        options = on("cuda:0", "cuda:1")["engine"]
        async with await AsyncModel.load(neutral, **options) as model:
            await model.score([("ab", [4, 5])])
            before = gpus[1].log.count("execute")
            lose_first(gpus)
            with pytest.raises(UnfinishedError, match=re.escape(REASON)):
                await model.generate(TEXTS)
            at_loss = gpus[0].log.count("execute")
            await model.score([("ab", [4, 5])])
            return before, gpus[0].log.count("execute") - at_loss

    before, after = asyncio.run(main())
    assert before == 0 < after


def lose_first(gpus: list[DoubleDevice]) -> None:
    """The first GPU is lost at its next run, for which runs of the second one wait.

    The list then holds the second one.
    """
    lost = threading.Event()

    def lose(name: str) -> None:
        if name == "run":
            lost.set()
            raise RuntimeError(LOST)

    def wait(name: str) -> None:
        assert name != "run" or lost.wait(60)

    gpus.pop(0).refuse, gpus[0].refuse = lose, wait


def test_steps_are_counted_by_how_they_ran(neutral: Path, gpus: list[DoubleDevice]) -> None:
    def steps_of(client: httpx.Client, model: str) -> dict[str, float]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {
            sample.labels["mode"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "dragoman_decoding_steps_total" and sample.labels["model"] == model
        }

    body = {"source": "ab", "min_new_tokens": 6, "max_new_tokens": 6}
    with serving({"letters": neutral}, **on("cuda:0")) as client:
        assert steps_of(client, "letters") == {"captured": 0, "direct": 0}
        client.post("/v1/generate", json=body)
        first = steps_of(client, "letters")
        assert first["captured"] == gpus[0].log.count("launch") > 0 == first["direct"]
        assert client.post("/v2/repository/models/letters/unload").status_code == 200
        assert steps_of(client, "letters") == first, "a counter does not fall"
        gpus[0].refuse = _refuse_captures
        client.post("/v1/generate", json=body)
        second = steps_of(client, "letters")
        assert second["captured"] == first["captured"]
        assert second["direct"] > 0


def test_the_processor_counts_no_captured_steps(neutral: Path) -> None:
    with serving({"letters": neutral}) as client:
        client.post("/v1/generate", json={"source": "ab"})
        assert "dragoman_decoding_steps_total{" not in client.get("/metrics").text


def _refuse_captures(name: str) -> None:
    if name == "captured run":
        raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("memory", "workers", "rows"),
    [(64 * GIB, 1, 256), (20 * GIB, 1, 128), (20 * GIB, 2, 64), (6 * GIB, 1, 32), (GIB, 1, 16)],
)
def test_the_rows_of_a_batch_depend_on_the_memory_of_the_gpu(
    neutral: Path, gpus: list[DoubleDevice], memory: int, workers: int, rows: int
) -> None:
    gpus[0].room = memory
    engine = DecodingEngine(_on_gpu(neutral), workers=workers)
    assert engine.batch_size == rows
    engine.close()


def test_rows_that_do_not_fit_are_not_used(neutral: Path, gpus: list[DoubleDevice]) -> None:
    gpus[0].room = 2 << 20
    engine = DecodingEngine(_on_gpu(neutral))
    assert 1 <= engine.batch_size < 16
    engine.close()


def test_a_gpu_tries_one_worker_and_two() -> None:
    expected = [(1, 1, 32), (1, 1, 64), (1, 1, 128), (2, 1, 32), (2, 1, 64)]
    assert arrangements_on_gpu(128) == expected
    assert arrangements_on_gpu(1) == [(1, 1, 1), (2, 1, 1)]


def test_every_arrangement_of_a_gpu_is_measured(neutral: Path, gpus: list[DoubleDevice]) -> None:
    gpus[0].room = 4 << 20
    tried = try_arrangements(neutral, requests=3, device="cuda")
    assert {each.arrangement.workers for each in tried} == {1, 2}
    assert {each.arrangement.threads for each in tried} == {1}


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (("cuda:0", "cpu"), "device: expected cpu alone or GPUs, found cuda:0, cpu"),
        (("cuda:1", "cuda", "cuda:0"), "device: expected each GPU once, found cuda twice"),
        (("gpu",), "device: expected cpu, cuda or cuda:N, such as cuda:1, found 'gpu'"),
    ],
)
def test_wrong_devices(neutral: Path, devices: tuple[str, ...], message: str) -> None:
    with pytest.raises(DragomanError, match=re.escape(message)):
        EngineOptions(devices=devices)
    with pytest.raises(DragomanError, match=re.escape(message)):
        read_options({"bundles": "a", "device": ",".join(devices)})
    words = [word for device in devices for word in ("--device", device)]
    result = CliRunner().invoke(cli, ["serve", str(neutral), *words])
    assert f"--{message}" in f"{result.output}{result.exception}"


def test_the_option_may_be_repeated(neutral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[EngineOptions] = []

    def serve(bundles: Any, options: Any, listen: Any, *, preload: bool) -> None:
        found.append(options.engine)

    monkeypatch.setattr("dragoman.runtime.serving.process.serve", serve)
    words = ["serve", str(neutral), "--device", "cuda:0", "--device", "cuda:1"]
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert found[0].devices == ("cuda:0", "cuda:1")


def _on_gpu(directory: Path) -> Model:
    return loading.load(directory, device="cuda", check="never")
