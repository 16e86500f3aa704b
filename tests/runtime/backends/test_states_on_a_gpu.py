"""Recurrent decoders on a GPU: states follow rows, prompts, and steps that are decoded again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dragoman.reference_model import Transformer
from dragoman.runtime import GenerationOptions, Model, load

from ... import provider_double
from ...device_double import DoubleDevice
from ..conftest import exported, varied_model
from .gpu_models import ALLOCATING, ENGINES, engines_of, opened, same
from .test_slots_on_a_gpu import join_wherever_memory_runs_out, twins_of

CAPACITY = 21
Sources = Callable[..., list[list[int]]]
BUILT = dataclasses.replace(ENGINES, capacity=CAPACITY)


@pytest.fixture(scope="module", params=["ssru", "gru"])
def trusted(
    request: pytest.FixtureRequest,
    recurrent_case: tuple[Transformer, Path],
    recurrent_model: Model,
    tmp_path_factory: pytest.TempPathFactory,
) -> Model:
    """The model on the processor."""
    if request.param == "ssru":
        return recurrent_model
    config = dataclasses.replace(recurrent_case[0].config, decoder_kind="gru")
    directory = tmp_path_factory.mktemp("gru") / "bundle"
    return load(exported(varied_model(config, seed=9), directory, None), threads=1)


@pytest.fixture(scope="module")
def engines(trusted: Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return engines_of(trusted.bundle.directory, tmp_path_factory, BUILT)


@pytest.fixture(params=["engines", "provider"])
def model(
    request: pytest.FixtureRequest,
    trusted: Model,
    engines: Any,
    device: DoubleDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Model:
    """The model on a device."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return on_device(request.param, trusted, engines, device)


def on_device(backend: str, trusted: Model, engines: Any, device: DoubleDevice) -> Model:
    if backend == "engines":
        return opened(engines, device)
    decoder = onnx.load(trusted.bundle.graph_path("decoder"), load_external_data=False)
    loops = any(node.op_type == "Scan" for node in decoder.graph.node)  # are not captured
    return provider_double.opened(trusted.bundle, device, captures=not loops)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_rows_are_decoded_as_on_the_processor(
    model: Model, trusted: Model, device: DoubleDevice, seed: int, width: int
) -> None:
    twins = twins_of(model, trusted, seed, width)
    twins.capacity = CAPACITY
    most = 7 if width == 1 else 5
    twins.begin(1 + seed % most, 1 + seed % 3)
    for _ in range(40):
        twins.anything(most)
    twins.close()
    model.close()
    device.assert_empty()


def test_steps_that_ran_ahead_are_decoded_again_from_the_state_before_them(
    model: Model, trusted: Model, device: DoubleDevice
) -> None:
    """As many as run ahead at most, after rows have left in between."""
    twins = twins_of(model, trusted, seed=11)
    twins.capacity = CAPACITY
    twins.begin(7, 1)
    for _ in range(17):
        twins.step()
    device.log.clear()
    twins.retire(1, 4)
    twins.keep()
    twins.step()
    twins.choose()
    assert device.log.count("wait") <= 1  # the steps in flight are not waited for
    twins.retire(0)
    twins.step()
    twins.join(2, 1)
    twins.go_on()
    twins.close()


def test_beams_move_after_rows_have_left(model: Model, trusted: Model) -> None:
    twins = twins_of(model, trusted, seed=3, width=3)
    twins.begin(2, 1)
    twins.step()
    for state in twins.states:
        tokens = state.advance().choice.tokens
        state.keep(np.array([1]))
        state.reorder(np.array([2, 0, 0]))
        state.feed(tokens[[5, 3, 3]])
    twins.left = twins.left[1:]
    twins.go_on()
    twins.close()


def test_every_strategy(model: Model, trusted: Model, random_sources: Sources) -> None:
    sources = [s[:33] for s in random_sources(trusted.manifest.model, 11, seed=5)]
    kinds: list[dict[str, Any]] = [
        {},
        {"num_beams": 4, "num_return_sequences": 2},
        {"alternatives": 3},
        {"do_sample": True, "seed": 5, "top_k": 9},
        {"prefix": [7, 8, 3]},
    ]
    for number, kind in enumerate(kinds):
        options = GenerationOptions(**{"max_new_tokens": 9 + 2 * number, **kind})
        same(model.generate(sources, options), trusted.generate(sources, options))
    mixed = [GenerationOptions(**{"max_new_tokens": 11, **kinds[n % 5]}) for n in range(11)]
    mixed = [options.replace(num_beams=1, num_return_sequences=1) for options in mixed]
    same(model.generate(sources, mixed), trusted.generate(sources, mixed))
    pairs = [(source, [3, 4, 5, 3]) for source in sources]
    for one, other in zip(model.score(pairs), trusted.score(pairs), strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)


def test_the_second_batch_allocates_nothing(
    model: Model, trusted: Model, random_sources: Sources, device: DoubleDevice
) -> None:
    sources = [s[:33] for s in random_sources(trusted.manifest.model, 5, seed=6)]
    for again in (False, True):
        device.log.clear()
        model.generate(sources, max_new_tokens=CAPACITY)
        assert not again or ALLOCATING.isdisjoint(device.log)


@pytest.mark.parametrize("backend", ["engines", "provider"])
def test_a_batch_that_others_cannot_join_goes_on_unharmed(
    backend: str, trusted: Model, engines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    join_wherever_memory_runs_out(partial(on_device, backend, trusted, engines), trusted, 7)


def test_prompts_of_unlike_lengths_begin_from_no_state(
    model: Model, trusted: Model, device: DoubleDevice
) -> None:
    source, mask = np.full((4, 5), 3), np.ones((4, 5), np.bool_)
    prompt = np.array([[1, 5, 6, 7, 2], [4, 0, 0, 0, 0], [9, 9, 0, 0, 0], [8, 3, 2, 0, 0]])
    lengths = np.array([5, 1, 2, 3])
    state = model.backend.start(source, mask, prompt, CAPACITY, 1, lengths)
    found = state.step()
    for row, length in enumerate(lengths):
        own = trusted.backend.start(
            source[:1], mask[:1], prompt[row : row + 1, :length], CAPACITY
        ).step()
        assert found.tokens[row] == own.tokens[0]
        assert found.log_probabilities[row] == pytest.approx(own.log_probabilities[0], abs=1e-5)
    state.close()
    model.close()
    device.assert_empty()
