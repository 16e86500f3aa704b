from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.errors import DragomanError
from dragoman.optimize.engine_options import EngineOptions
from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.profiles import add_profiles, check_profiles, describe
from dragoman.runtime import Bundle
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.executables import Profile, Range

GOOD = Range(1, 2, 3)


@pytest.mark.parametrize(
    ("profiles", "capacity", "message"),
    [
        ([], 9, "expected at least one optimization profile, found none"),
        ([Profile(Range(0, 1, 2), GOOD)], 9, r"profile 0, batch: .*found 0\.\.1\.\.2"),
        ([Profile(GOOD, GOOD), Profile(Range(4, 3, 8), GOOD)], 9, r"profile 1, batch: .*4\.\.3"),
        ([Profile(GOOD, Range(1, 9, 8))], 9, r"profile 0, source length: .*found 1\.\.9\.\.8"),
        ([Profile(GOOD, Range(1, 8, 21))], 9, "source length: expected at most 20, .* found 21"),
        ([Profile(GOOD, GOOD)], 17, "capacity: expected 1 to 16, .* found 17"),
        ([Profile(GOOD, GOOD)], 0, "capacity: expected 1 to 16, .* found 0"),
    ],
)
def test_bad_ranges_are_named(
    neutral: Bundle, profiles: list[Profile], capacity: int, message: str
) -> None:
    with pytest.raises(DragomanError, match=message):
        check_profiles(profiles, capacity, neutral.manifest.model)


def test_bad_ranges_are_found_before_anything_is_written(neutral: Bundle, tmp_path: Path) -> None:
    graphs = dataclasses.replace(
        neutral, manifest=dataclasses.replace(neutral.manifest, target="tensorrt-rtx")
    )
    with pytest.raises(DragomanError, match="capacity"):
        build_engines(graphs, tmp_path, EngineOptions((Profile(GOOD, GOOD),), capacity=99))
    assert list(tmp_path.iterdir()) == []


def test_a_range_that_tensorrt_refuses_is_named_with_its_tensor(rtx: Package) -> None:
    trt = rtx.module
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    negative = Profile(Range(-3, 2, 3), GOOD)
    spec = GraphSpec("x.onnx", (TensorSpec("source", "source", "int64", ("batch",)),), ())
    with pytest.raises(DragomanError, match=r"profile 0, input source: .*\(-3,\) to \(3,\)"):
        add_profiles(builder, builder.create_builder_config(), spec, [negative])


def test_rows_have_sources_of_their_own_or_share_as_few_as_one() -> None:
    shapes: dict[str, tuple[object, ...]] = {}
    added = SimpleNamespace(set_shape=lambda name, *sizes: shapes.update({name: sizes}))
    builder = SimpleNamespace(create_optimization_profile=lambda: added)
    config = SimpleNamespace(add_optimization_profile=lambda profile: 0)
    mask = TensorSpec("source_mask", "source_mask", "bool", ("source_batch", "source"))
    spec = GraphSpec("x.onnx", (TensorSpec("position", "position", "int64", ("batch",)), mask), ())
    add_profiles(builder, config, spec, [Profile(Range(4, 8, 32), Range(2, 7, 20))])
    assert shapes == {
        "position": ((4,), (8,), (32,)),
        "source_mask": ((1, 2), (8, 7), (32, 20)),
    }


def test_other_dynamic_axes_are_an_error(rtx: Package) -> None:
    trt = rtx.module
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    spec = GraphSpec("x.onnx", (TensorSpec("token", "token", "int64", ("batch", "query")),), ())
    with pytest.raises(DragomanError, match=r"input token: .*found query"):
        add_profiles(builder, builder.create_builder_config(), spec, [Profile(GOOD, GOOD)])


def test_the_description_of_a_profile() -> None:
    profile = Profile(Range(1, 1, 1), Range(1, 5, 20))
    assert describe(profile) == "batch 1, source 1 to 20 (best 5)"
