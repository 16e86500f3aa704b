"""Caches are updated in place, and nothing is allocated or bound again until rows leave.

Where 8-bit products saturate, exact kernels are requested; where kernels of 4-bit weights add in
another order for one row, two are computed.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from dragoman.optimize.running import run
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.onnxruntime import cpu, host_buffers
from dragoman.runtime.backends.onnxruntime import cpu_state as state_module
from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend, session_options
from dragoman.runtime.backends.onnxruntime.cpu_state import HostState
from dragoman.runtime.backends.onnxruntime.host_buffers import HostBuffer
from dragoman.runtime.decoding.request import pad
from dragoman.runtime.format.manifest import Precision

Pair = tuple[Transformer, Model]
RandomSources = Callable[..., list[list[int]]]
EVERY_ROW = slice(None)


def start(model: Model, sources: list[list[int]], capacity: int) -> HostState:
    backend = model.backend
    assert isinstance(backend, OnnxRuntimeBackend)
    spec = model.manifest.model
    prompt = np.full((len(sources), 1), spec.start_token_id)
    return backend.start(*pad(sources, spec.pad_token_id), prompt, capacity)


def arrays(state: HostState) -> dict[str, NDArray[np.float32]]:
    """Everything that the decoder reads, and its results, by slot."""
    return {str(slot): buffer.array for slot, buffer in state._buffers.items()}


def addresses(state: HostState) -> dict[str, int]:
    return {name: array.ctypes.data for name, array in arrays(state).items()}


def caches(state: HostState) -> list[NDArray[np.float32]]:
    roles = ("past_key", "past_value")
    return [b.array for slot, b in state._buffers.items() if slot.role in roles]


@pytest.mark.parametrize("pair", ["text", "ids"], indirect=True)
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
            assert new.shape[2] == 8  # a multiple of four
            np.testing.assert_array_equal(new[:, :, :position], old[:, :, :position])
            assert (new[:, :, position] != 0).any(axis=(1, 2)).all()
            assert (new[:, :, position + 1 :] == 0).all()


@pytest.mark.parametrize("pair", ["recurrent"], indirect=True)
def test_a_step_replaces_states_in_place(pair: Pair, random_sources: RandomSources) -> None:
    """Their memory is as large at the last position as at the first."""
    reference, model = pair
    state = start(model, random_sources(reference.config, 4), capacity=6)
    where, sizes = addresses(state), {name: a.nbytes for name, a in arrays(state).items()}
    assert caches(state) == []
    names = [f"past_state_{layer}" for layer in range(reference.config.decoder_layers)]
    assert all((arrays(state)[name] == 0).all() for name in names)
    for _ in range(6):
        before = {name: arrays(state)[name].copy() for name in names}
        state.step()
        assert addresses(state) == where
        assert {name: a.nbytes for name, a in arrays(state).items()} == sizes
        for name in names:
            assert arrays(state)[name].shape == (4, reference.config.d_model)
            assert (arrays(state)[name] != before[name]).any(axis=1).all()


def test_rows_that_remain_fill_the_places_of_others_in_the_same_memory(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    state = start(model, random_sources(reference.config, 5), capacity=6)
    for _ in range(3):
        state.step()
    where, binding = addresses(state), state._binding
    before = {name: array.copy() for name, array in arrays(state).items()}
    kept = np.array([0, 4, 2])
    state.keep(kept)
    assert state._binding is not binding
    assert addresses(state) == where
    for name, array in arrays(state).items():
        if not name.startswith("next"):  # results of the last step, which are read already
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
            left = len(kept) - 2
            order = np.arange(left)
            order[step % left] = left + step % 2
            fewer.keep(order)
            kept = kept[order]
    assert len(kept) == 1


def test_sources_join_at_other_positions_and_of_other_lengths(
    pair: Pair, random_sources: RandomSources
) -> None:
    """In places of retired ones and beyond, longer and shorter than those that are there."""
    reference, model = pair
    sources = [source[:4] for source in random_sources(reference.config, 5, seed=2)]
    later = [[*source, 5, 6, 7, 8] for source in sources[:3]] + [[9]]
    together, alone = start(model, sources, 14), start(model, sources, 14)
    other, other_alone = start(model, later, 14), start(model, later, 14)
    for _ in range(3):
        together.step(), alone.step()
    other.step(), other_alone.step()
    together.retire(np.array([1, 3]))
    together.join(other, np.array([3, 1, 5, 6]))
    for _ in range(6):
        found, old, new = together.step(), alone.step(), other_alone.step()
        places, new_places = [0, 2, 4], [3, 1, 5, 6]
        np.testing.assert_array_equal(found.tokens[places], old.tokens[places])
        np.testing.assert_array_equal(found.tokens[new_places], new.tokens)
        np.testing.assert_allclose(
            found.log_probabilities[new_places], new.log_probabilities, atol=1e-5
        )


@pytest.mark.parametrize("allocations", [0, 1, 4])
def test_a_batch_that_others_cannot_join_goes_on_unharmed(
    pair: Pair,
    random_sources: RandomSources,
    monkeypatch: pytest.MonkeyPatch,
    allocations: int,
) -> None:
    """Memory runs out after so many allocations; then others join."""
    reference, model = pair
    sources = [source[:4] for source in random_sources(reference.config, 3, seed=2)]
    later = [[*source, 5, 6, 7, 8] for source in sources[:2]]
    present, alone = start(model, sources, 14), start(model, sources, 14)
    other, other_alone = start(model, later, 14), start(model, later, 14)
    for state in (present, alone, other, other_alone):
        state.step()
    zeros, left = host_buffers._zeros, allocations

    def few(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise BackendError("no memory")
        return zeros(shape, dtype)

    before = addresses(present)
    with monkeypatch.context() as patched:
        patched.setattr(host_buffers, "_zeros", few)
        with pytest.raises(BackendError, match="no memory"):
            present.join(other, np.array([3, 4]))
    assert addresses(present) == before
    for _ in range(3):
        found, expected = present.step(), alone.step()
        np.testing.assert_array_equal(found.tokens, expected.tokens)
    present.join(other, np.array([3, 4]))
    for _ in range(3):
        found, old, new = present.step(), alone.step(), other_alone.step()
        np.testing.assert_array_equal(found.tokens, [*old.tokens, *new.tokens])


def test_a_retired_source_never_reaches_the_capacity(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    state = start(model, random_sources(reference.config, 2), capacity=4)
    for _ in range(4):
        state.step()
    state.retire(np.array([0, 1]))
    state.join(start(model, random_sources(reference.config, 1), 4), np.array([1]))
    for _ in range(4):
        state.step()
    assert arrays(state)["position"].tolist() == [0, 4]


def test_a_prompt_gives_the_same_as_its_tokens_one_by_one(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 4, seed=11)
    backend, spec = model.backend, model.manifest.model
    batch = pad(sources, spec.pad_token_id)
    prompt = np.array([[1, 5, 7], [1, 3, 3], [1, 8, 4], [1, 6, 5]])
    at_once = backend.start(*batch, prompt, 6)
    one_by_one = backend.start(*batch, prompt[:, :1], 6)
    for fed in prompt[:, 1:].T:
        one_by_one.advance()
        one_by_one.feed(fed)
    for _ in range(4):
        found, expected = at_once.step(), one_by_one.step()
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=1e-5)


def test_a_prediction_has_the_graph_s_choice_and_what_it_was_chosen_from(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 4, seed=9)
    state, other = (start(model, sources, capacity=2) for _ in range(2))
    best, prediction = state.step(), other.advance()
    np.testing.assert_array_equal(prediction.choice.tokens, best.tokens)
    logits = torch.from_numpy(prediction.logits.copy())
    expected = torch.log_softmax(logits, -1)
    normalizers = prediction.normalizers[:, None]
    np.testing.assert_allclose(prediction.logits - normalizers, expected, atol=1e-5)
    count = min(5, logits.shape[1])
    candidates = prediction.candidates(count)
    values, tokens = expected.topk(count)
    np.testing.assert_array_equal(candidates.tokens, tokens)
    np.testing.assert_allclose(candidates.log_probabilities, values, atol=1e-5)


def test_buffers_are_bound_once_and_again_when_rows_leave(
    pair: Pair, random_sources: RandomSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = pair
    counts = {"_bound": 0, "step": 0, "keep": 0}

    def count(name: str) -> None:
        original = getattr(HostState, name)

        def counted(self: HostState, *arguments: object) -> object:
            counts[name] += 1
            return original(self, *arguments)

        monkeypatch.setattr(HostState, name, counted)

    for name in counts:
        count(name)
    results = model.generate(random_sources(reference.config, 40))
    assert counts["step"] == reference.config.max_target_positions
    assert counts["keep"] >= 2
    assert counts["_bound"] == 1 + counts["keep"]
    assert {result.finish_reason for result in results} == {"end", "length"}


@pytest.mark.parametrize("at_once", [1, 30, 75])
def test_sources_are_encoded_a_few_at_a_time(
    pair: Pair, random_sources: RandomSources, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """One by one, some and a rest, and more: each run writes its own rows of common buffers."""
    reference, model = pair
    sources = random_sources(reference.config, 7)
    length = max(map(len, sources))
    whole = arrays(start(model, sources, capacity=6))
    runs: list[tuple[int, ...]] = []
    bind = HostBuffer.bind

    def counted(buffer: HostBuffer, how: Any, name: str, rows: slice = EVERY_ROW) -> None:
        is_written = name == "cross_key_0" and how.__name__ == "bind_output"
        runs.extend([buffer.array[rows].shape] if is_written else [])
        bind(buffer, how, name, rows)

    monkeypatch.setattr(HostBuffer, "bind", counted)
    monkeypatch.setattr(state_module, "CACHED_TOKENS", at_once)
    parts = arrays(start(model, sources, capacity=6))
    for slot, expected in whole.items():
        np.testing.assert_array_equal(parts[slot], expected)
    each = max(1, at_once // length)
    assert [shape[0] for shape in runs] == [each] * (7 // each) + [7 % each] * (7 % each > 0)


def test_a_buffer_keeps_its_address_while_rows_leave_and_come_back() -> None:
    buffer = HostBuffer((4, 1, 3, 1), np.float32)
    values = np.arange(12, dtype=np.float32).reshape(4, 1, 3, 1)
    buffer.write(values)
    address = buffer.array.ctypes.data
    buffer.move(3, 1, 0, 2)
    np.testing.assert_array_equal(buffer.array[1, 0, :, 0], [9, 10, 5])
    for rows in (2, 4):
        room = buffer.room_for((rows, 1, 3, 1))
        assert room is None
        buffer.resize((rows, 1, 3, 1), room)
        assert buffer.array.shape == (rows, 1, 3, 1)
    assert buffer.array.ctypes.data == address
    np.testing.assert_array_equal(buffer.array[3], values[3])


def test_a_buffer_that_grows_keeps_what_it_holds() -> None:
    buffer = HostBuffer((2, 1, 3, 1), np.float32)
    values = np.arange(6, dtype=np.float32).reshape(2, 1, 3, 1)
    buffer.write(values)
    buffer.resize((3, 1, 5, 1), buffer.room_for((3, 1, 5, 1)))
    expected = np.zeros((3, 1, 5, 1), np.float32)
    expected[:2, :, :3] = values
    np.testing.assert_array_equal(buffer.array, expected)
    buffer.resize((3, 1, 2, 1), buffer.room_for((3, 1, 2, 1)))
    np.testing.assert_array_equal(buffer.array, expected[:, :, :2])


def test_of_a_cache_that_grows_what_is_written_is_kept_and_the_rest_zero() -> None:
    buffer = HostBuffer((2, 3, 4096, 5), np.float32)
    assert not buffer.array.any()
    buffer.write(np.ones(buffer.array.shape, np.float32))
    room = buffer.room_for((3, 3, 4096, 5))
    assert room is not None
    assert buffer.resize((3, 3, 4096, 5), room, written=7)
    assert buffer.array[:2, :, :7].all()
    assert not buffer.array[:, :, 7:].any()
    assert not buffer.array[2].any()
    assert not buffer.resize((1, 3, 4096, 5), buffer.room_for((1, 3, 4096, 5)), written=7)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is resident")
def test_a_batch_takes_memory_only_where_it_is_written() -> None:
    """What joins another batch never writes its own caches."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    mebibyte = 2**20
    gc.collect()  # what earlier tests left is not freed meanwhile
    used = [HostBuffer((64 * mebibyte,), np.int8) for _ in range(2)]
    before = resident()
    buffers = [HostBuffer((64 * mebibyte,), np.int8) for _ in range(4)]
    assert resident() - before < 16 * mebibyte
    ready = resident()
    buffers[0].write(np.ones(1, np.int8))
    grown = resident() - ready
    assert 64 * mebibyte <= grown < 96 * mebibyte
    del buffers, used
    assert resident() - before < 16 * mebibyte


def test_a_number_of_rows_that_comes_back_is_not_bound_again(
    pair: Pair, random_sources: RandomSources
) -> None:
    reference, model = pair
    sources = [random_sources(reference.config, 1, seed=3)[0]] * 4
    state = start(model, sources, 14)
    state.step()
    state.retire(np.array([3]))
    whole = state._binding
    state.keep(np.arange(3))
    fewer = state._binding
    assert fewer is not whole
    state.join(start(model, sources[:1], 14), np.array([3]))
    assert state._binding is whole
    alone = start(model, sources[:1], 14)
    for _ in range(3):
        assert state.step().tokens[3] == alone.step().tokens[0]


def test_a_row_that_another_pads_is_decoded_as_alone(
    pair: Pair, random_sources: RandomSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as rows join and leave; where one row is multiplied as several are, none is added."""
    reference, model = pair
    sources = random_sources(reference.config, 3, seed=5)
    found = []
    for least in (1, 2):
        monkeypatch.setattr(model.backend, "_least_rows", least)
        state = start(model, sources[:1], capacity=9)
        steps = [state.step() for _ in range(3)]
        state.join(start(model, sources[1:2], capacity=9), np.array([1]))
        steps += [state.step() for _ in range(2)]
        state.keep(np.array([1]))
        steps += [state.step(), state.step()]
        state.retire(np.array([0]))
        state.join(start(model, sources[2:], capacity=9), np.array([0]))
        steps.append(state.step())
        state.feed(steps[-1].tokens)
        logits = state.advance().logits
        assert logits.shape == (1, model.manifest.model.target_vocab_size)
        assert all(np.isfinite(buffer._memory).all() for buffer in state._buffers.values())
        target = np.array([[5]])
        encoded = pad(sources[:1], model.manifest.model.pad_token_id)
        found.append((steps, logits, model.backend.score(*encoded, target)))
    (expected, one, score), (steps, padded, padded_score) = found
    for step, other in zip(steps, expected, strict=True):
        np.testing.assert_array_equal(step.tokens, other.tokens)
        np.testing.assert_allclose(step.log_probabilities, other.log_probabilities, atol=1e-5)
    np.testing.assert_allclose(padded, one, atol=1e-5)
    assert padded_score.shape == score.shape
    np.testing.assert_allclose(padded_score, score, atol=1e-5)


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


ENTRY = "session.x64quantprecision"


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    cpu.saturates.cache_clear()
    yield
    cpu.saturates.cache_clear()


def test_the_probe_multiplies_the_largest_integers() -> None:
    model = onnx.load_from_string(cpu.PROBE)
    onnx.checker.check_model(model, full_check=True)
    (node,) = model.graph.node
    assert (node.op_type, list(node.input)) == ("MatMulInteger", ["x", "w"])
    (weight,) = model.graph.initializer
    assert np.array_equal(numpy_helper.to_array(weight), np.full((4, 1), 127, np.int8))


@pytest.mark.parametrize(("sum_of_products", "expected"), [(4 * 255 * 127, None), (65534, "1")])
def test_exact_kernels_are_asked_for_where_sums_saturate(
    sum_of_products: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        def __init__(self, *_: object, **__: object) -> None: ...

        def run(self, *_: object) -> Any:
            return [np.array([[sum_of_products]], np.int32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    options = session_options(1)
    if expected is None:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry(ENTRY)
    else:
        assert options.get_session_config_entry(ENTRY) == expected


def test_the_probe_of_rows_says_whether_single_rows_differ() -> None:
    """As products of other shapes show."""
    model = onnx.load_from_string(cpu.ROWS_PROBE)
    (node,) = model.graph.node
    assert node.op_type == "MatMulNBits"
    random, differ = np.random.default_rng(1), False
    for width, outputs in ((64, 64), (256, 100)):
        shapes = {"K": width, "N": outputs}
        for attribute in node.attribute:
            attribute.i = shapes.get(attribute.name, attribute.i)
        packed = random.integers(0, 256, (outputs, width // 32, 16), np.uint8)
        scales = random.random((outputs, width // 32), np.float32)
        for old, new in zip(model.graph.initializer, (packed, scales), strict=True):
            old.CopyFrom(numpy_helper.from_array(new, old.name))
        for value, size in ((model.graph.input[0], width), (model.graph.output[0], outputs)):
            value.type.tensor_type.shape.dim[1].dim_value = size
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        x = random.standard_normal((40, width), np.float32)
        several, *single = (session.run(["y"], {"x": rows})[0] for rows in (x, *x[:, None]))
        # Padding to two rows suffices.
        assert np.array_equal(session.run(["y"], {"x": x[:2]})[0], several[:2])
        differ |= not np.array_equal(np.concatenate(single), several)
    assert cpu.single_rows_differ() == differ


def test_this_processor_answers() -> None:
    assert cpu.saturates() in (False, True)
