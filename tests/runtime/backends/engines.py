"""Engines of the double of TensorRT, and models that run them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.runtime import Bundle, Model, load
from dragoman.runtime.backends.tensorrt.backend import TensorRTBackend
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.executables import EngineReport, Profile, Range, TensorRTEngines

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
