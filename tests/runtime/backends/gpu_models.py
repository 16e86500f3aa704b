"""Engines on the double of TensorRT, models that run them, and comparisons of their results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.runtime import Bundle, Model, Result, load
from dragoman.runtime.backends.tensorrt.backend import TensorRTBackend
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.manifest import EngineReport, Profile, Range, TensorRTEngines

from ...device_double import DoubleDevice
from ...tensorrt_api import checked_module, recorded
from ...tensorrt_double import package_module, plan

CAPACITY = 13
SOURCE = Range(1, 16, 33)
PROFILES = (Profile(Range(1, 1, 2), SOURCE), Profile(Range(1, 8, 16), SOURCE))
REPORT = EngineReport({}, {}, 0, None, None)
ENGINES = TensorRTEngines(
    version="1.7.1.116",
    cuda_version="13",
    compute_capabilities=(),
    capacity=CAPACITY,
    profiles=PROFILES,
    refittable=False,
    reports={"encoder": REPORT, "decoder": REPORT},
)
RECORDS = ("tensorrt_rtx-1.7.1.116", "tensorrt-10.16.1.11", "tensorrt-11.4.0.106")


def engines_of(directory: Path, factory: pytest.TempPathFactory, built: TensorRTEngines) -> Bundle:
    graphs, made = load(directory).bundle, factory.mktemp("engines")
    pinned = pinned_bundle(graphs, factory.mktemp("pinned"), built.capacity)
    manifest = pinned.manifest
    for spec in manifest.graphs.values():
        (made / spec.file).write_bytes(plan(pinned.path(spec.file), spec, built.profiles))
    return Bundle(made, dataclasses.replace(manifest, target="tensorrt-rtx", executable=built))


def opened(bundle: Bundle, device: DoubleDevice, record: str = RECORDS[0]) -> Model:
    target: str = "tensorrt-rtx" if "rtx" in record else "tensorrt"
    package = Package(
        target, checked_module(package_module(device), recorded(record)), "1.7.1.116", "13"
    )
    built = bundle.manifest.executable
    assert isinstance(built, TensorRTEngines)
    return Model(bundle, TensorRTBackend(bundle, built, package, device))


ALLOCATING = {"allocate", "free", "allocate_host", "new_stream", "new_event", "begin_capture"}
"""Calls of the device that must not occur once the sizes of a batch are known."""


def same(found: list[Result], expected: list[Result]) -> None:
    assert [r.tokens for r in found] == [r.tokens for r in expected]
    assert [r.finish_reason for r in found] == [r.finish_reason for r in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4, abs=1e-4)


def same_numbers(
    model: Model,
    ids_model: Model,
    source: NDArray[np.int64],
    mask: NDArray[np.bool_],
    target: NDArray[np.int64],
) -> None:
    """Compare `encode` and `score` for sources [batch, source] and targets [batch, query]."""
    found, expected = model.backend.encode(source, mask), ids_model.backend.encode(source, mask)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        used = np.broadcast_to(mask[:, None, :, None], values.shape)
        np.testing.assert_allclose(found[name][used], values[used], atol=1e-5)
    np.testing.assert_allclose(
        model.backend.score(source, mask, target),
        ids_model.backend.score(source, mask, target),
        atol=1e-4,
    )


def repeats_without_allocating(
    model: Model, device: DoubleDevice, sources: list[list[int]], capacity: int
) -> None:
    """The second time, the device only runs: the encoder once, and captured steps."""
    model.generate(sources, max_new_tokens=capacity)
    device.log.clear()
    again = model.generate(sources, max_new_tokens=capacity)
    assert ALLOCATING.isdisjoint(device.log)
    assert device.log.count("execute") == 1  # the encoder; steps are launched
    assert device.log.count("launch") >= max(len(r.tokens) for r in again)
