from __future__ import annotations

from types import SimpleNamespace

import pytest

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt.capabilities import (
    check_capabilities,
    describe_capabilities,
    set_capabilities,
)
from dragoman.runtime.backends.tensorrt.packages import Package


def test_capabilities_of_the_package_are_accepted(rtx: Package) -> None:
    check_capabilities(rtx, ["8.9", "12.0"], "int4")
    check_capabilities(rtx, [], "fp32")


def test_an_unknown_capability_is_an_error_that_lists_the_known_ones(rtx: Package) -> None:
    with pytest.raises(DragomanError, match=r"capability 9\.0: .* builds for 7\.5, 8\.0, 8\.6"):
        check_capabilities(rtx, ["8.9", "9.0"], "fp16")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_turing_has_fp16_only(rtx: Package, precision: str) -> None:
    with pytest.raises(DragomanError, match=f"7.5, Turing .*expected precision fp16.*{precision}"):
        check_capabilities(rtx, ["7.5"], precision)  # type: ignore[arg-type]
    check_capabilities(rtx, ["7.5"], "fp16")


def test_a_package_that_builds_for_its_own_gpu_refuses_capabilities() -> None:
    package = Package("tensorrt", SimpleNamespace(), "11.4.0.106", "13")
    check_capabilities(package, [], "fp32")
    with pytest.raises(DragomanError, match=r"expected no compute capability, found 8\.9"):
        check_capabilities(package, ["8.9"], "fp32")


def test_the_build_is_for_them(rtx: Package) -> None:
    trt = rtx.module
    config = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR)).create_builder_config()
    set_capabilities(rtx, config, ["8.9", "12.0"])
    assert config.num_compute_capabilities == 2
    assert config.get_compute_capability(1) == trt.ComputeCapability.SM120


def test_the_description_of_capabilities() -> None:
    assert describe_capabilities("tensorrt-rtx", ["8.9"]).startswith("8.9: Ada")
    assert "Ampere and later" in describe_capabilities("tensorrt-rtx", [])
    assert "built on" in describe_capabilities("tensorrt", [])
