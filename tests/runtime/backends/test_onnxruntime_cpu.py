"""Caches are updated in place; nothing is allocated or bound again until rows leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dragoman.optimize.compare import run
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.backends.errors import BackendError
from dragoman.runtime.backends.interface import Step
from dragoman.runtime.backends.onnxruntime.cpu.backend import OnnxRuntimeBackend
from dragoman.runtime.backends.onnxruntime.cpu.memory import HostBuffer
from dragoman.runtime.backends.onnxruntime.cpu.state import BoundState
from dragoman.runtime.decoding.batching import pad
from dragoman.runtime.decoding.logits_processors import Row, SuppressTokensAt, choose
from dragoman.runtime.format.manifest import Precision

Pair = tuple[Transformer, Model]
RandomSources = Callable[..., list[list[int]]]


def start(model: Model, sources: list[list[int]], capacity: int) -> BoundState:
    backend = model.backend
    assert isinstance(backend, OnnxRuntimeBackend)
    spec = model.manifest.model
    prompt = np.full((len(sources), 1), spec.start_token_id)
    return backend.start(*pad(sources, spec.pad_token_id), prompt, capacity)


def arrays(state: BoundState) -> dict[str, NDArray[np.float32]]:
    """Everything that the decoder reads, and its results, by slot."""
    return {str(slot): buffer.read() for slot, buffer in state._buffers.items()}


def addresses(state: BoundState) -> dict[str, int]:
    return {name: array.ctypes.data for name, array in arrays(state).items()}


def caches(state: BoundState) -> list[NDArray[np.float32]]:
    roles = ("past_key", "past_value")
    return [b.read() for slot, b in state._buffers.items() if slot.role in roles]


def test_a_step_writes_one_position_of_the_caches_in_place(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    state = start(model, random_sources(reference.config, 4), capacity=6)
    where, binding = addresses(state), state._binding
    assert len(caches(state)) == 2 * model.manifest.model.decoder_layers
    assert all((cache == 0).all() for cache in caches(state))
    for position in range(6):
        before = [cache.copy() for cache in caches(state)]
        state.step()
        assert addresses(state) == where
        assert state._binding is binding
        for old, new in zip(before, caches(state), strict=True):
            assert new.shape[2] == 6
            np.testing.assert_array_equal(new[:, :, :position], old[:, :, :position])
            assert (new[:, :, position] != 0).any(axis=(1, 2)).all()
            assert (new[:, :, position + 1 :] == 0).all()


def test_rows_that_remain_move_to_the_front_of_the_same_memory(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    state = start(model, random_sources(reference.config, 5), capacity=6)
    for _ in range(3):
        state.step()
    where, binding = addresses(state), state._binding
    before = {name: array.copy() for name, array in arrays(state).items()}
    kept = np.array([1, 2, 4])
    state.keep(kept)
    assert state._binding is not binding
    assert addresses(state) == where
    for name, array in arrays(state).items():
        np.testing.assert_array_equal(array, before[name][kept], err_msg=name)


def test_the_remaining_rows_are_decoded_as_before(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 9, seed=4)
    all_rows, fewer = (start(model, sources, capacity=12) for _ in range(2))
    kept = np.arange(9)
    for step in range(12):
        expected, found = all_rows.step(), fewer.step()
        np.testing.assert_array_equal(found.tokens, expected.tokens[kept])
        np.testing.assert_allclose(
            found.log_probabilities, expected.log_probabilities[kept], atol=1e-5
        )
        if step in (0, 3, 4, 8):
            stay = np.flatnonzero(np.arange(len(kept)) % 3 != step % 3)
            fewer.keep(stay)
            kept = kept[stay]
    assert len(kept) < 4


def test_a_prompt_gives_the_same_as_its_tokens_one_by_one(
    pair: Pair, random_sources: RandomSources
) -> None:
    """Also when rows leave before it is decoded."""
    reference, model = pair
    sources = random_sources(reference.config, 4, seed=11)
    backend, spec = model.backend, model.manifest.model
    batch = pad(sources, spec.pad_token_id)
    prompt = np.array([[1, 5, 7], [1, 3, 3], [1, 8, 4], [1, 6, 5]])
    at_once = backend.start(*batch, prompt, 6)
    one_by_one = backend.start(*batch, prompt[:, :1], 6)
    stay = np.array([0, 2, 3])
    for state in (at_once, one_by_one):
        state.keep(stay)
    for fed in prompt[stay, 1:].T:
        zeros = np.zeros(3, np.float32)
        one_by_one.step_choosing(lambda logits, fed=fed, zeros=zeros: Step(fed, zeros))  # type: ignore[misc]
    for _ in range(4):
        found, expected = at_once.step(), one_by_one.step()
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=1e-5)


def test_a_step_with_processors_chooses_the_best_allowed_token(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 4, seed=9)
    state, other = (start(model, sources, capacity=2) for _ in range(2))
    best = state.step()
    banned = int(best.tokens[0])
    processor = SuppressTokensAt(1, [banned])
    second = other.step_choosing(lambda logits: choose(logits, [processor], [Row((), [1])] * 4))
    assert banned not in second.tokens
    same = best.tokens != banned
    np.testing.assert_array_equal(second.tokens[same], best.tokens[same])
    np.testing.assert_allclose(
        second.log_probabilities[same], best.log_probabilities[same], atol=1e-5
    )
    assert (second.log_probabilities[~same] < best.log_probabilities[~same]).all()


def test_buffers_are_bound_once_and_again_when_rows_leave(
    pair: Pair, random_sources: RandomSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = pair
    counts = {"_bound": 0, "step": 0, "keep": 0}

    def count(name: str) -> None:
        original = getattr(BoundState, name)

        def counted(self: BoundState, *arguments: object) -> object:
            counts[name] += 1
            return original(self, *arguments)

        monkeypatch.setattr(BoundState, name, counted)

    for name in counts:
        count(name)
    results = model.generate(random_sources(reference.config, 40))
    assert counts["step"] == reference.config.max_target_positions
    assert counts["keep"] >= 2
    assert counts["_bound"] == 1 + counts["keep"]
    assert {result.finish_reason for result in results} == {"end", "length"}


def test_a_buffer_keeps_rows_in_place_and_moves_used_positions_only() -> None:
    buffer = HostBuffer((4, 1, 3, 1), np.float32)
    values = np.arange(12, dtype=np.float32).reshape(4, 1, 3, 1)
    buffer.write(values)
    address = buffer.read().ctypes.data
    buffer.keep(np.array([1, 3]), used=2)
    kept = buffer.read()
    assert kept.shape == (2, 1, 3, 1)
    assert kept.ctypes.data == address
    np.testing.assert_array_equal(kept[:, :, :2], values[[1, 3], :, :2])
    buffer.keep(np.array([1]))
    np.testing.assert_array_equal(buffer.read()[0, 0, :2], values[3, 0, :2])


@pytest.mark.parametrize("positions", [2**50, 2**62])
def test_a_batch_that_no_memory_holds_is_an_error_of_the_backend(positions: int) -> None:
    with pytest.raises(BackendError, match=rf"no memory for an array of float32 .*{positions}"):
        HostBuffer((2, 3, positions, 4), np.float32)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_weights_in_integers_leave_activations_alone(
    ids_case: tuple[Transformer, Path], tmp_path: Path, precision: Precision
) -> None:
    """ONNX Runtime fuses their products, and by itself would round what they multiply to 8 bits."""
    bundle = optimize_bundle(
        read_bundle(ids_case[1]), tmp_path, target="neutral", precision=precision
    )
    graph = bundle.manifest.graphs["encoder"]
    tokens = np.array([[3, 7, 1, 9, 9], [4, 5, 6, 8, 2]])
    feeds = {t.name: tokens if t.role == "source" else tokens > 0 for t in graph.inputs}
    as_written = run(ir.load(bundle.graph_path("encoder")), feeds)
    with load(tmp_path, threads=1) as model:
        found = model.backend.encode(tokens, tokens > 0)
    for name, expected in as_written.items():
        np.testing.assert_allclose(found[name], np.asarray(expected, float), atol=1e-5, rtol=0)
