"""Sources are admitted and evicted on a GPU at any step, and beams move, as on the processor.

Both backends of a GPU run on doubles of their libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle, GenerationOptions, Model
from dragoman.runtime.backends.cuda.state import DeviceState
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.tensorrt import workspace as tensorrt_workspace

from ...device_double import DoubleDevice
from .gpu_models import ALLOCATING, CAPACITY, opened, same
from .twins import Twins

Case = tuple[Transformer, Path]
Open = Callable[[DoubleDevice], Model]
Sources = Callable[..., list[list[int]]]


def twins_of(model: Model, ids_model: Model, seed: int, width: int = 1) -> Twins:
    found, expected = model.backend, ids_model.backend
    twins = Twins(found, expected, model.manifest.model, np.random.default_rng(seed))
    twins.width, twins.capacity = width, CAPACITY
    return twins


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_rows_are_decoded_as_on_the_processor(
    model: Model, ids_model: Model, device: DoubleDevice, seed: int, width: int
) -> None:
    twins = twins_of(model, ids_model, seed, width)
    most = 7 if width == 1 else 5
    twins.begin(1 + seed % most, 1 + seed % 3)
    for _ in range(40):
        twins.anything(most)
    twins.close()
    model.close()
    device.assert_empty()


@pytest.mark.parametrize("rows", [1, 7])
def test_requests_enter_and_leave_as_they_end(
    model: Model, ids_case: Case, ids_model: Model, random_sources: Sources, rows: int
) -> None:
    """Requests have unequal limits; some have rules that need logits or candidates."""
    sources = random_sources(ids_case[0].config, 23, seed=rows)
    kinds: list[dict[str, Any]] = [
        {},
        {"min_new_tokens": 4},
        {"alternatives": 3},
        {"do_sample": True, "seed": 5, "top_k": 9},
        {"prefix": [7, 8]},
    ]
    options = [
        GenerationOptions(
            **{"max_new_tokens": 4 + 3 * index % 9, "max_batch_size": rows, **kinds[index % 5]}
        )
        for index in range(len(sources))
    ]
    same(model.generate(sources, options), ids_model.generate(sources, options))


@pytest.mark.parametrize("beams", [2, 4])
def test_beams_are_those_of_the_processor(
    model: Model, ids_case: Case, ids_model: Model, random_sources: Sources, beams: int
) -> None:
    sources = random_sources(ids_case[0].config, 7, seed=beams)
    for options in (
        GenerationOptions(max_new_tokens=CAPACITY, num_beams=beams),
        GenerationOptions(max_new_tokens=9, num_beams=beams, max_batch_size=2 * beams),
        GenerationOptions(max_new_tokens=5, num_beams=beams, min_new_tokens=3, length_penalty=0.0),
    ):
        several = options.replace(num_return_sequences=2)
        found, expected = (m.generate(sources, several) for m in (model, ids_model))
        same(found, expected)
        for one, other in zip(found, expected, strict=True):
            assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
            assert one.score == pytest.approx(other.score, rel=1e-4)


def test_sources_join_without_a_transfer_and_known_sizes_without_memory(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    """All but the tokens and positions of the rows stay on the device."""
    for again in (False, True):
        twins = twins_of(model, ids_model, seed=2)
        twins.begin(5, 1)
        for _ in range(3):
            twins.step()
        twins.retire(1)
        twins.before_joining = device.log.clear
        twins.join(2, 1)
        assert {"download", "synchronize", "wait"}.isdisjoint(device.log)
        assert device.log.count("upload") == 2  # tokens fed again, and with those of the new rows
        for _ in range(4):
            twins.step()
        assert device.log.count("upload") == 3  # positions
        if again:
            assert ALLOCATING.isdisjoint(device.log)
        twins.close()


def test_sources_are_laid_out_for_the_longest_that_remains(model: Model, ids_model: Model) -> None:
    """Lengths are multiples of 16, and stay as they are unless much shorter ones suffice."""
    twins = twins_of(model, ids_model, seed=4, width=2)
    twins.lengths = (3, 3)
    twins.begin(2, 1)
    joining = ((33, 33), (20, 33), (28, 33), (14, 33), (17, 32), (2, 32), (9, 16))
    for index, (length, expected) in enumerate(joining):
        twins.lengths = (length, length)
        twins.choose()
        twins.retire(index % 2)
        twins.join(1, 1)
        twins.choose()
        state = twins.states[0]
        assert isinstance(state, DeviceState)
        assert state._memory.sizes.source == expected
    twins.close()


def test_beams_move_on_the_device_and_only_where_they_differ(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    layers = model.manifest.model.decoder_layers
    twins = twins_of(model, ids_model, seed=0, width=3)
    twins.begin(2, 1)
    for parents, moves in (
        ([0, 0, 0, 3, 4, 5], 2),  # rows 1 and 2 have another first position
        ([0, 0, 2, 3, 4, 3], 2),
        ([0, 1, 2, 3, 4, 5], 0),
    ):
        for state in twins.states:
            tokens = state.advance().choice.tokens
            device.log.clear()
            state.reorder(np.array(parents))
            if state is twins.states[0]:
                assert device.log == ["copy_2d"] * (2 * layers * moves)
            state.feed(tokens)
    twins.step()
    twins.close()


def refuse(device: DoubleDevice, number: int) -> None:
    """Refuse the allocation of this number, from 1, and all that follow."""
    calls = iter(range(1, 1000))

    def refuse_call(name: str) -> None:
        if name in ("allocate", "allocate_host") and next(calls) >= number:
            raise BackendError(f"{name}: out of memory (cudaErrorMemoryAllocation)")

    device.refuse = refuse_call


def join_wherever_memory_runs_out(open_on: Open, trusted: Model, seed: int) -> None:
    """Let sources join on new devices, each of which refuses one allocation more than the next."""
    for number in range(1, 100):
        device = DoubleDevice()
        model = open_on(device)
        twins = twins_of(model, trusted, seed, width=3)
        twins.lengths = (1, 4)
        twins.begin(2, 1)
        twins.go_on()
        twins.lengths = (20, 33)
        twins.before_joining = partial(refuse, device, number)
        try:
            twins.join(3, 1)
            joined = True
        except BackendError as error:
            assert "out of memory" in str(error)
            joined = False
        device.refuse = lambda name: None
        assert len(twins.left) == (5 if joined else 2)
        twins.choose()
        twins.go_on()
        twins.close()
        model.close()
        device.assert_empty()
        if joined:
            break
    assert number > 10


def test_a_batch_that_others_cannot_join_goes_on_unharmed(open_on: Open, ids_model: Model) -> None:
    join_wherever_memory_runs_out(open_on, ids_model, 6)


def test_a_batch_goes_on_unharmed_when_others_cannot_start(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    twins = twins_of(model, ids_model, 7)
    twins.begin(3, 1)
    for number in (1, 2, 9, 17):
        twins.step()
        twins.choose()
        refuse(device, number)
        with pytest.raises(BackendError, match="out of memory"):
            twins.join(4, 1)
        device.refuse = lambda name: None
    twins.join(4, 2)
    twins.step()
    twins.choose()
    twins.close()
    model.close()
    device.assert_empty()


def test_engines_that_do_not_take_the_sizes_of_all_leave_the_batch_unharmed(
    engines: Bundle, ids_model: Model, device: DoubleDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(engines, device)
    twins = twins_of(model, ids_model, 8)
    twins.begin(2, 1)
    twins.step()

    def no_context(*arguments: object) -> NoReturn:
        raise BackendError("no context could be created")

    twins.before_joining = lambda: monkeypatch.setattr(tensorrt_workspace, "Context", no_context)
    with pytest.raises(BackendError, match="no context could be created"):
        twins.join(5, 1)
    monkeypatch.undo()
    twins.before_joining = lambda: None
    twins.step()
    twins.choose()
    with pytest.raises(BackendError, match="at most 2 rows of 33 tokens; 16 rows of 33 tokens"):
        twins.join(15, 1)
    twins.join(5, 1)
    twins.step()
    twins.close()
    model.close()
    device.assert_empty()
