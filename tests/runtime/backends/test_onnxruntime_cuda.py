"""Decoding on ONNX Runtime's CUDA provider, on a double that enforces the provider's contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.benchmarks.models.random_checkpoint import random_model
from dragoman.export import export_bundle
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.runtime import (
    Bundle,
    Model,
    Result,
    UnfinishedError,
    load,
    read_bundle,
)
from dragoman.runtime.backends.cuda.layout import Sizes, rounded_up
from dragoman.runtime.backends.interface import BackendError, DecodingState, StepOutput
from dragoman.runtime.backends.onnxruntime import cuda
from dragoman.runtime.backends.onnxruntime.cuda import PositionRounding

from ...device_double import DoubleDevice
from ...provider_double import opened
from ...small_bundle import small_bundle
from .gpu_models import ALLOCATING, repeats_without_allocating, same

CAPACITY = 13
Sources = Callable[..., list[list[int]]]
Case = tuple[Transformer, Path]


@pytest.fixture
def bundle(ids_case: Case) -> Bundle:
    return read_bundle(ids_case[1])


@pytest.fixture
def model(bundle: Bundle, device: DoubleDevice) -> Model:
    return opened(bundle, device)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """On the processor; with room for 150 target positions."""
    return load(small_bundle(tmp_path_factory.mktemp("long"), 150), threads=1)


def batch(rows: int, length: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sources of unequal length."""
    generator = np.random.default_rng(seed)
    source = generator.integers(0, 17, (rows, length))
    return source, np.arange(length) < generator.integers(1, length + 1, (rows, 1))


def without(left: int, count: int) -> NDArray[np.intp]:
    """For `keep`: the last source takes the place of one that leaves."""
    kept = np.arange(count - 1)
    kept[left : left + 1] = count - 1
    return kept


def first(rows: int) -> NDArray[np.int64]:
    return np.full((rows, 1), 1)


@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("count", [1, 2, 7, 21])
def test_the_gpu_generates_what_the_processor_generates(
    bundle: Bundle,
    ids_case: Case,
    ids_model: Model,
    random_sources: Sources,
    device: DoubleDevice,
    count: int,
    captures: bool,
) -> None:
    sources = random_sources(ids_case[0].config, count, seed=count)
    model = opened(bundle, device, captures=captures)
    cases: list[dict[str, Any]] = [
        {"max_new_tokens": 1},
        {"max_new_tokens": 21},  # all positions that there are
        {"max_new_tokens": CAPACITY, "min_new_tokens": 6},
        {"max_new_tokens": CAPACITY, "max_batch_size": 3},
    ]
    for options in cases:
        same(model.generate(sources, **options), ids_model.generate(sources, **options))
    assert ("launch" in device.log) is captures
    model.close()
    device.assert_empty()


def test_prompts_with_choices_of_the_caller_and_leaving_rows(
    model: Model, ids_model: Model
) -> None:
    """In any order: `advance` may follow steps that have run ahead."""
    source, mask = batch(7, 9, seed=2)
    prompt = np.random.default_rng(3).integers(3, 19, (7, 4))
    found, expected = (
        m.backend.start(source, mask, prompt, 4 + CAPACITY) for m in (model, ids_model)
    )

    def second(state: DecodingState) -> StepOutput:
        """Decode the second best token of each row."""
        best = state.advance().candidates(2)
        state.feed(best.tokens[:, 1])
        return StepOutput(best.tokens[:, 1], best.log_probabilities[:, 1])

    for index in range(CAPACITY):
        if index in (0, 3, 4, 9):
            one, other = second(found), second(expected)
        else:
            one, other = found.step(), expected.step()
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-4)
        if index in (1, 3, 6, 8):
            for state in (found, expected):
                state.keep(without(index % len(one.tokens), len(one.tokens)))


def test_known_sizes_neither_allocate_nor_capture(
    model: Model, ids_case: Case, random_sources: Sources, device: DoubleDevice
) -> None:
    sources = random_sources(ids_case[0].config, 12, seed=4)
    repeats_without_allocating(model, device, sources, CAPACITY)
    model.generate([source[:-1] or source for source in sources[:11]], max_new_tokens=CAPACITY - 1)
    assert ALLOCATING.isdisjoint(device.log)  # sizes are rounded


def test_features_of_audio(tmp_path: Path, device: DoubleDevice) -> None:
    """Whose length is the model's; only rows are rounded up."""
    config = ModelConfig(
        source_vocab_size=None,
        feature_size=6,
        target_vocab_size=19,
        encoder_layers=1,
        decoder_layers=2,
        d_model=16,
        num_heads=2,
        d_ff=24,
        max_source_positions=10,
        max_target_positions=20,
        dropout=0.0,
    )
    export_bundle(random_model(config, seed=4), tmp_path, name="speech")
    graphs = load(tmp_path, threads=1)
    model = opened(graphs.bundle, device)
    features = np.random.default_rng(0).standard_normal((3, 6, 20)).astype(np.float32)
    mask = np.ones((3, 10), np.bool_)
    prompt = np.array([[1, 4, 6]] * 3)
    found, expected = (m.backend.start(features, mask, prompt, 12) for m in (model, graphs))
    for _ in range(10):
        np.testing.assert_array_equal(found.step().tokens, expected.step().tokens)
    found.close()
    model.close()
    device.assert_empty()


def test_tokens_of_several_steps_are_read_together(long: Model, device: DoubleDevice) -> None:
    source, mask = batch(9, 7, seed=2)
    model = opened(long.bundle, device)
    expected, found = (m.backend.start(source, mask, first(9), 150) for m in (long, model))
    found.step(), expected.step()
    device.log.clear()
    kept = np.arange(9)
    for step in range(1, 150):
        np.testing.assert_array_equal(found.step().tokens, expected.step().tokens[: len(kept)])
        if step in (30, 41, 50):  # in the middle of what was read at once
            kept = np.arange(len(kept) - 2)
            found.keep(kept)
            expected.keep(kept)
    assert device.log.count("wait") < 0.4 * 150
    assert device.log.count("synchronize") == device.log.count("begin_capture") <= 3
    assert device.log.count("upload") == 0
    found.close()
    model.close()
    device.assert_empty()


def test_a_decoder_with_nodes_on_the_processor_is_awaited_in_each_step(
    long: Model, device: DoubleDevice
) -> None:
    """Otherwise a step would use memory of the host of which the one before is still copied."""
    source, mask = batch(9, 7, seed=2)
    model = opened(long.bundle, device, captures=False, on_processor=True)
    expected, found = (m.backend.start(source, mask, first(9), 40) for m in (long, model))
    for _ in range(40):
        np.testing.assert_array_equal(found.step().tokens, expected.step().tokens)
    found.close()
    model.close()
    device.assert_empty()


def test_graphs_are_dropped_when_memory_moves(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    """A larger batch in between: the smaller one's graphs hold addresses that are no more."""
    for sources in ([[3, 4]], [[5] * 30] * 6, [[3, 4]], [[7, 8, 9]] * 2, [[3]]):
        same(
            model.generate(sources, max_new_tokens=CAPACITY),
            ids_model.generate(sources, max_new_tokens=CAPACITY),
        )
    assert device.log.count("begin_capture") > 3


def test_another_thread_captures_its_own_graphs(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    expected = ids_model.generate([[3, 4]], max_new_tokens=CAPACITY)
    found: list[list[Result]] = []
    for _ in range(3):
        thread = Thread(
            target=lambda: found.append(model.generate([[3, 4]], max_new_tokens=CAPACITY))
        )
        thread.start()
        thread.join()
    for results in found:
        same(results, expected)
    assert len(device.streams) == 1
    assert device.log.count("begin_capture") == 3


def test_the_number_of_graphs_is_limited(
    model: Model, ids_model: Model, device: DoubleDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "MOST_GRAPHS", 2)
    for rows in (1, 2, 4, 8, 1, 8):
        same(
            model.generate([[3, 4]] * rows, max_new_tokens=CAPACITY),
            ids_model.generate([[3, 4]] * rows, max_new_tokens=CAPACITY),
        )
    assert device.log.count("begin_capture") == 2


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_batch_that_does_not_fit_is_halved(
    bundle: Bundle, ids_case: Case, ids_model: Model, random_sources: Sources, share: float
) -> None:
    """Whether our memory is short, or the provider's in the middle of a run."""
    sources = random_sources(ids_case[0].config, 16, seed=6)
    full = DoubleDevice()
    roomy = opened(bundle, full)
    roomy.generate(sources, max_new_tokens=CAPACITY)
    tight = DoubleDevice(room=int(sum(block.size for block in full.blocks.values()) * share))
    model = opened(bundle, tight)
    same(
        model.generate(sources, max_new_tokens=CAPACITY),
        ids_model.generate(sources, max_new_tokens=CAPACITY),
    )
    model.close()
    tight.assert_empty()


@pytest.mark.parametrize(
    ("gigabytes", "share", "rows"),
    [(80, 1, 256), (24, 1, 128), (24, 0.5, 64), (12, 1, 64), (12, 0.5, 32), (6, 1, 32), (2, 1, 16)],
)
def test_rows_of_a_batch_follow_from_free_memory(
    bundle: Bundle, gigabytes: int, share: float, rows: int
) -> None:
    model = opened(bundle, DoubleDevice(room=gigabytes << 30))
    assert model.backend.rows_that_fit(11, CAPACITY, share) == rows


@pytest.mark.parametrize("kilobytes", [200, 400, 800])
def test_the_rows_that_fit_and_as_many_that_join_do(bundle: Bundle, kilobytes: int) -> None:
    device = DoubleDevice(room=kilobytes << 10)
    backend = opened(bundle, device).backend
    rows = backend.rows_that_fit(11, CAPACITY)
    assert rows is not None and 1 <= rows < 16
    source, mask = np.full((rows, 11), 3), np.ones((rows, 11), np.bool_)
    for state in [backend.start(source, mask, first(rows), CAPACITY) for _ in range(2)]:
        state.step()


def test_a_device_without_room_for_the_weights(bundle: Bundle) -> None:
    device = DoubleDevice(room=5000)
    with pytest.raises(BackendError, match="out of memory"):
        opened(bundle, device)
    device.assert_empty()


def test_a_device_without_room_for_any_batch(bundle: Bundle) -> None:
    (result,) = opened(bundle, DoubleDevice(room=13000)).generate([[3, 4]], max_new_tokens=CAPACITY)
    assert result.finish_reason == "rejected"
    assert result.error is not None and "out of memory" in result.error


def test_a_device_lost_in_a_run_ends_the_call_with_the_finished_results(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    runs: list[str] = []

    def refuse(name: str) -> None:
        runs.extend([name] if name == "run" else [])
        if len(runs) > 15:
            raise RuntimeError("CUDA failure 700: an illegal memory access; expr=launch")

    device.refuse = refuse
    sources = [[3, 4], [5], [6, 7, 8], [9] * 5, [10] * 4, [11]]
    with pytest.raises(UnfinishedError, match="CUDA failure 700") as error:
        model.generate(sources, max_new_tokens=CAPACITY, max_batch_size=2)
    finished = error.value.finished
    assert 0 < len(finished) < len(sources)
    device.refuse = lambda name: None
    for index, result in finished.items():
        same([result], ids_model.generate([sources[index]], max_new_tokens=CAPACITY))


def test_sizes_are_powers_of_two_and_halves_between_them() -> None:
    assert [rounded_up(number) for number in range(14)] == [
        *(1, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16),
    ]
    assert [rounded_up(number) for number in (24, 25, 33, 48, 49, 96, 97)] == [
        *(24, 32, 48, 48, 64, 96, 128),
    ]
    assert [rounded_up(number, 16) for number in (0, 1, 16, 17, 49, 65, 100)] == [
        *(16, 16, 16, 32, 64, 96, 128),
    ]


def test_sizes_are_rounded_within_the_positions(bundle: Bundle) -> None:
    """17 source tokens of at most 33, 21 target positions."""
    rounding = PositionRounding(bundle.manifest.model)
    assert rounding.first(1, 1, 1, 1) == Sizes(0, 1, 16, 21)
    assert rounding.first(5, 17, 13, 1) == Sizes(0, 6, 32, 21)
    assert rounding.first(33, 33, 21, 1) == Sizes(0, 48, 33, 21)
    long = dataclasses.replace(bundle.manifest.model, max_target_positions=150)
    assert PositionRounding(long).first(2, 3, 65, 1) == Sizes(0, 2, 16, 128)
    assert PositionRounding(long).first(2, 3, 129, 1) == Sizes(0, 2, 16, 150)
    assert rounding.first(3, 33, 21, 5) == Sizes(0, 3, 33, 21, 5)
    assert Sizes(0, 4, 33, 21, 5).rows == 20
    assert rounding.after(Sizes(0, 64, 33, 21), 9) == Sizes(0, 12, 33, 21)
    assert rounding.after(Sizes(0, 64, 33, 21, 5), 9) == Sizes(0, 12, 33, 21, 5)
