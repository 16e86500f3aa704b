"""The same code on TensorRT: every call fits its API as recorded from NVIDIA's own bindings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.optimize.tensorrt.builder import build_engine, timing_cache_file
from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.optimize.tensorrt.request import EngineOptions, check_capabilities
from dragoman.runtime import Bundle
from dragoman.runtime.backends.tensorrt.packages import REQUIRED_API, Package

from ...tensorrt_api import checked_module, recorded
from ..conftest import Optimize

VERSIONS = ("10.16.1.11", "11.4.0.106")


@pytest.fixture(params=VERSIONS)
def tensorrt(request: pytest.FixtureRequest, rtx: Package) -> Package:
    module = checked_module(rtx.module, recorded(f"tensorrt-{request.param}"))
    return Package("tensorrt", module, request.param, "13")


@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")
def test_engines_are_built_with_its_api(
    tensorrt: Package,
    neutral: Bundle,
    optimize: Optimize,
    tmp_path: Path,
    two_profiles: EngineOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "pinned").mkdir()
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    pinned = pinned_bundle(graphs, tmp_path / "pinned", two_profiles.capacity)
    for name, spec in pinned.manifest.graphs.items():
        engine = build_engine(tensorrt, pinned.path(spec.file), spec, two_profiles)
        assert len(engine.plan) > 0
        assert engine.report.fused is None
        assert engine.report.attentions == {"encoder": 2, "decoder": 4, "candidates": 0}[name]
    cache = timing_cache_file(tensorrt)
    assert cache is not None and cache.is_file()


def test_it_takes_no_compute_capabilities(tensorrt: Package) -> None:
    check_capabilities(tensorrt, [], "fp16")
    with pytest.raises(Exception, match="builds for the GPU of the machine"):
        check_capabilities(tensorrt, ["8.9"], "fp16")


@pytest.mark.parametrize("version", [*VERSIONS, "rtx"])
def test_the_api_has_everything_that_is_needed(version: str) -> None:
    name = "tensorrt_rtx-1.7.1.116" if version == "rtx" else f"tensorrt-{version}"
    api = recorded(name)
    for needed in REQUIRED_API:
        kind, _, member = needed.partition(".")
        assert member in api[kind]


def test_the_record_of_the_installed_package_is_right(rtx: Package) -> None:
    from .record_api import api_of

    assert api_of(rtx.module) == recorded(f"tensorrt_rtx-{rtx.version}")


def test_the_wrapper_refuses_what_the_version_lacks(rtx: Package) -> None:
    module: Any = checked_module(rtx.module, recorded("tensorrt-11.4.0.106"))
    builder = module.Builder(module.Logger(module.Logger.ERROR))
    with pytest.raises(AssertionError, match="expected one of"):
        builder.create_network(1, 2, 3)
    with pytest.raises(AttributeError, match="has no platform_has_fast_fp17"):
        _ = builder.platform_has_fast_fp17
    assert not hasattr(module, "ComputeCapability")
