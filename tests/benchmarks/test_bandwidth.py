"""The share of a GPU's memory bandwidth: formulas by hand, and a bench on the double of a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import runtime

from dragoman.benchmarks import bandwidth, latency
from dragoman.benchmarks.bandwidth import Bandwidth, copy_bandwidth, peak_bandwidth, step_bytes
from dragoman.benchmarks.models.bundles import optimized_bundle
from dragoman.cli.bench import _print
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.format.manifest import EngineReport, TensorRTEngines

from ..device_double import DoubleDevice
from ..provider_double import opened
from ..small_bundle import small_bundle

WEIGHTS = (
    6 * (16 * 16 + 16)  # self-attention's four projections, cross-attention's query and output
    + 2 * 16 * 24  # feed-forward
    + (24 + 16)
    + 6 * 16  # three norms
    + 19 * 16  # logits; rows of the embedding, which is the same table, are gathered
)
"""Of the decoder's one layer of 16 with a feed-forward block of 24, and 19 tokens."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return read_bundle(small_bundle(tmp_path_factory.mktemp("small"), 64))


@pytest.fixture
def attributes(monkeypatch: pytest.MonkeyPatch) -> dict[Any, int]:
    """The attributes of a GPU that the driver knows."""
    known: dict[Any, int] = {}
    success, failure = runtime.cudaError_t.cudaSuccess, runtime.cudaError_t.cudaErrorInvalidValue

    def get(attribute: Any, index: int) -> tuple[Any, int]:
        assert index == 1
        return (success, known[attribute]) if attribute in known else (failure, 0)

    monkeypatch.setattr(runtime, "cudaDeviceGetAttribute", get)
    return known


def test_what_a_step_reads_by_hand(bundle: Bundle, tmp_path: Path) -> None:
    """Keys and values of 16 numbers: 10 of the source and 6.5 of the target, for three rows."""
    caches = 3 * 2 * 16 * (10 + 6.5)
    scalars = 4 * 4
    assert 0 <= step_bytes(bundle, 3, 10, 6.5) - (WEIGHTS + caches) * 4 <= scalars
    half = read_bundle(
        optimized_bundle(bundle.directory, tmp_path / "half", target="neutral", precision="fp16")
    )
    assert step_bytes(half, 3, 10, 6.5) == pytest.approx((WEIGHTS + caches) * 2, rel=0.01)


def test_engines_name_the_bytes_of_their_weights(bundle: Bundle) -> None:
    report = EngineReport({}, {"int8": 1000, "fp16": 200}, 0, None, None)
    engines = TensorRTEngines(
        version="1",
        cuda_version="13.0",
        compute_capabilities=(),
        capacity=64,
        profiles=(),
        refittable=False,
        reports={"decoder": report},
    )
    manifest = dataclasses.replace(bundle.manifest, executable=engines)
    built = dataclasses.replace(bundle, manifest=manifest)
    assert step_bytes(built, 1, 4, 8) == 1200 + 2 * 16 * (4 + 8) * 4


def test_the_peak_by_hand(attributes: dict[Any, int]) -> None:
    """A memory of 2619 MHz and 5120 bits: 2 * 2.619e9 * 640 bytes in a second."""
    assert peak_bandwidth(1) is None
    kind = runtime.cudaDeviceAttr
    attributes[kind.cudaDevAttrMemoryClockRate] = 2_619_000
    attributes[kind.cudaDevAttrGlobalMemoryBusWidth] = 5120
    assert peak_bandwidth(1) == pytest.approx(3352.3, abs=0.05)
    attributes[kind.cudaDevAttrMemoryClockRate] = 0  # a driver that does not say
    assert peak_bandwidth(1) is None


def test_the_share_by_hand() -> None:
    """3 GB in 2 ms are 1500 GB/s."""
    assert Bandwidth(3000.0, 2500.0).share(3_000_000_000, 2.0) == pytest.approx(0.5)
    assert Bandwidth(None, 2500.0).share(3_000_000_000, 2.0) == pytest.approx(0.6)


def test_copies_take_what_is_free_and_return_it() -> None:
    device = DoubleDevice(room=1 << 20)
    assert copy_bandwidth(device) > 0
    device.assert_empty()

    def refuse(name: str) -> None:
        if name == "copy":
            raise BackendError("no")

    device.refuse = refuse
    with pytest.raises(BackendError):
        copy_bandwidth(device)
    device.assert_empty()


def test_a_bench_on_a_gpu(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps are read in groups: most calls find the tokens there, and their median says nothing."""
    monkeypatch.setattr(bandwidth, "BYTES", 1 << 12)
    monkeypatch.setattr(bandwidth, "peak_bandwidth", lambda index: 2000.0)
    monkeypatch.setattr(latency, "load", lambda *_, **__: opened(bundle, DoubleDevice()))
    report = latency.bench(
        bundle.directory,
        backend="onnxruntime-cuda",
        threads=1,
        batch_sizes=(1, 3),
        source_length=10,
        new_tokens=20,
        runs=1,
        command="dragoman bench",
    )
    assert report.bandwidth is not None
    assert report.bandwidth.peak == 2000.0
    assert report.bandwidth.copied > 0
    for rows, batch, reads in zip((1, 3), report.batches, report.memory_reads, strict=True):
        assert batch.step is not None
        assert batch.step.p50 == batch.step.p99
        assert batch.encoder is not None
        whole = batch.encoder.p50 + 20 * batch.step.p50
        assert whole == pytest.approx(batch.sentence.p50, rel=0.01)
        size = step_bytes(bundle, rows, 10, 10)
        assert (reads.batch_size, reads.step_mb) == (rows, round(size / 1e6, 3))
        share = size / (batch.step.p50 * 1e-3) / 2000e9
        assert reads.share_of_bandwidth == pytest.approx(share, abs=1e-4)
    _print(report)
    output = " ".join(capsys.readouterr().out.split())
    assert "of bandwidth" in output
    assert "memory bandwidth of the GPU: peak 2,000 GB/s, copies" in output


def test_a_bench_on_the_processor(bundle: Bundle) -> None:
    options: dict[str, Any] = {"source_length": 4, "new_tokens": 2, "runs": 1, "command": ""}
    report = latency.bench(bundle.directory, backend=None, threads=1, batch_sizes=(1,), **options)
    assert (report.bandwidth, report.memory_reads) == (None, ())
