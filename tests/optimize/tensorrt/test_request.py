"""Requests for engines, for models of every kind, and the GPUs that packages build for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt.profiles import DEFAULT_BATCH, NAMED_BATCHES
from dragoman.optimize.tensorrt.request import (
    EngineRequest,
    check_capabilities,
    describe_capabilities,
    set_capabilities,
)
from dragoman.runtime import Bundle
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.manifest import Profile, Range


def test_an_encoder_only_model_has_sources_and_no_capacity(encoder_only: Bundle) -> None:
    model = encoder_only.manifest.model
    assert encoder_only.manifest.default_max_new_tokens == 0
    options = EngineRequest(tuple(NAMED_BATCHES.values())).for_model(model, 0)
    assert options.capacity == 0
    lengths = Range(1, 21, 21)
    assert options.profiles == (
        Profile(Range(1, 1, 1), lengths),
        Profile(Range(1, 32, 32), lengths),
    )
    request = EngineRequest(source_length=Range(2, 3, 9))
    assert request.for_model(model, 0).profiles == (Profile(DEFAULT_BATCH, Range(2, 3, 9)),)
    with pytest.raises(DragomanError, match=r"source length: expected at most 21, .* found 22$"):
        EngineRequest(source_length=Range(1, 1, 22)).for_model(model, 0)
    with pytest.raises(DragomanError, match=r"^capacity: expected none for an encoder-only model"):
        EngineRequest(capacity=4).for_model(model, 0)


@pytest.mark.parametrize("default", [5, 17])
def test_a_decoder_only_model_has_room_for_prompts(default: int, decoder_only: Bundle) -> None:
    """All positions, however few new tokens are the default; and one length for no source."""
    model = decoder_only.manifest.model
    options = EngineRequest().for_model(model, default)
    assert options.capacity == 17
    assert options.profiles == (Profile(DEFAULT_BATCH, Range(1, 1, 1)),)
    assert EngineRequest(capacity=3).for_model(model, default).capacity == 3
    with pytest.raises(DragomanError, match=r"capacity: expected 1 to 17, .* found 18$"):
        EngineRequest(capacity=18).for_model(model, default)
    with pytest.raises(
        DragomanError, match=r"^source length: expected none for a decoder-only model"
    ):
        EngineRequest(source_length=Range(1, 1, 1)).for_model(model, default)


def test_both_together_take_the_default_of_the_bundle(neutral: Bundle) -> None:
    options = EngineRequest().for_model(neutral.manifest.model, 5)
    assert options.capacity == 5
    assert options.profiles == (Profile(DEFAULT_BATCH, Range(1, 20, 20)),)


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
