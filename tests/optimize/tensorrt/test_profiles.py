from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt.engine_bundle import build_engines, pinned_spec
from dragoman.optimize.tensorrt.profiles import (
    add_profiles,
    check_profiles,
    default_source_range,
    describe,
)
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime import Bundle
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.manifest import Profile, Range

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


def test_one_length_stands_for_no_source(decoder_only: Bundle) -> None:
    model = decoder_only.manifest.model
    assert default_source_range(model) == Range(1, 1, 1)
    check_profiles([Profile(GOOD, Range(1, 1, 1))], 17, model)
    with pytest.raises(DragomanError, match=r"at most 1, without a source, found 2$"):
        check_profiles([Profile(GOOD, Range(1, 1, 2))], 17, model)
    for capacity in (0, 18):
        with pytest.raises(DragomanError, match=f"capacity: expected 1 to 17, .* {capacity}$"):
            check_profiles([Profile(GOOD, Range(1, 1, 1))], capacity, model)


def test_an_encoder_only_model_has_no_capacity_to_check(encoder_only: Bundle) -> None:
    model = encoder_only.manifest.model
    assert default_source_range(model) == Range(1, 21, 21)
    check_profiles([Profile(GOOD, Range(1, 9, 21))], 0, model)
    with pytest.raises(DragomanError, match=r"at most 21, the positions of this model, found 22$"):
        check_profiles([Profile(GOOD, Range(1, 9, 22))], 0, model)


@dataclasses.dataclass
class Shapes:
    """Stands for a builder, its profiles and its configuration."""

    profiles: list[dict[str, tuple[tuple[int, ...], ...]]] = dataclasses.field(default_factory=list)

    def create_optimization_profile(self) -> Shapes:
        self.profiles.append({})
        return self

    def set_shape(self, name: str, *sizes: tuple[int, ...]) -> None:
        self.profiles[-1][name] = sizes

    def add_optimization_profile(self, profile: Shapes) -> int:
        return len(self.profiles) - 1


def test_rows_of_an_encoder_only_model_are_sources(encoder_only: Bundle) -> None:
    shapes = Shapes()
    two = [Profile(Range(1, 1, 1), Range(1, 5, 21)), Profile(Range(2, 3, 8), Range(4, 5, 6))]
    add_profiles(shapes, shapes, encoder_only.manifest.graphs["encoder"], two)
    sizes = [((1, 1), (1, 5), (1, 21)), ((1, 4), (3, 5), (8, 6))]
    names = {"source", "source_mask", "token_type"}
    assert shapes.profiles == [dict.fromkeys(names, of_profile) for of_profile in sizes]


def test_rows_of_a_decoder_only_model_are_prompts(decoder_only: Bundle) -> None:
    """No axis has the length of a source."""
    shapes = Shapes()
    spec = pinned_spec(
        decoder_only.manifest.graphs["decoder"], {"query": 1, "read": 1, "capacity": 9}
    )
    add_profiles(shapes, shapes, spec, [Profile(Range(2, 3, 8), Range(1, 1, 1))])
    caches = {f"past_{part}_{layer}" for part in ("key", "value") for layer in range(2)}
    (found,) = shapes.profiles
    assert found == {
        "token": ((2, 1), (3, 1), (8, 1)),
        "position": ((2,), (3,), (8,)),
        "read": ((2, 1), (3, 1), (8, 1)),
        **dict.fromkeys(caches, ((2, 4, 9, 16), (3, 4, 9, 16), (8, 4, 9, 16))),
    }


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
