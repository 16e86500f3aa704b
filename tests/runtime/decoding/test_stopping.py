"""Calls with a time limit or an event stop before their next step, and lose nothing finished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.runtime import (
    CancelError,
    DeadlineError,
    DragomanError,
    GenerationOptions,
    Model,
    StoppedError,
    arguments,
)
from dragoman.runtime.decoding.greedy_and_sampling import Greedy
from dragoman.runtime.decoding.running_batch import Job, RunningBatch
from dragoman.runtime.decoding.scheduler import Scheduler

from ..conftest import SetAfter
from .scripted import ScriptedBackend, random_logits, request, spec

TEXTS = ["dragoman", "a", "interpreter", "z", "word", "translation", "q", "xy"]
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "samples": {"do_sample": True, "seed": 5, "num_return_sequences": 2},
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step that is decoded."""
    found: list[int] = []
    step = RunningBatch.step

    def counted(batch: RunningBatch[Any]) -> Any:
        found.append(batch.count)
        return step(batch)

    monkeypatch.setattr(RunningBatch, "step", counted)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_step_follows_and_finished_results_are_kept(
    strategy: str, text_model: Model, steps: list[int]
) -> None:
    """Wherever the call is stopped: before any input is read, between inputs, at any step."""
    options = STRATEGIES[strategy]
    never = SetAfter(10**9)
    expected = text_model.generate(TEXTS, max_batch_size=6, cancel=never, **options)
    assert expected == text_model.generate(TEXTS, max_batch_size=6, **options)
    needed = len(steps) // 2
    assert never.asked == len(TEXTS) + needed
    kept = set()
    for times in range(0, never.asked, 3):
        steps.clear()
        with pytest.raises(CancelError, match="the call was cancelled") as stopped:
            text_model.generate(TEXTS, max_batch_size=6, cancel=SetAfter(times), **options)
        assert len(steps) == max(0, times - len(TEXTS))
        finished = stopped.value.finished
        assert finished == {index: expected[index] for index in finished}
        kept.add(len(finished))
    assert (min(kept), max(kept) >= 2) == (0, True)
    assert text_model.generate(TEXTS, max_batch_size=6, **options) == expected


def test_rows_are_freed() -> None:
    backend = ScriptedBackend(random_logits(13, end=-9.0))
    scheduler: Scheduler[int] = Scheduler(backend, spec(13), rows=4, tokens=100)
    for number in range(4):
        scheduler.add(Job(number, request([3, 4], 20), Greedy()))

    def check() -> None:
        if backend.calls.count("step") == 5:
            assert scheduler.busy == 4
            raise CancelError("enough")

    with pytest.raises(CancelError, match="enough"):
        list(scheduler.run(check))
    assert backend.calls.count("step") == 5
    assert (backend.open_states, scheduler.busy) == (0, 0)


def test_time_runs_out_during_a_call(
    text_model: Model, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes a second on this clock."""
    monkeypatch.setattr(arguments, "time", SimpleNamespace(monotonic=lambda: float(len(steps))))
    expected = text_model.generate(TEXTS, timeout=1000)
    needed = len(steps)
    assert needed > 6
    for seconds in (Fraction(9, 2), 5):
        steps.clear()
        with pytest.raises(DeadlineError, match=r"not done within (4\.)?5 s") as stopped:
            text_model.generate(TEXTS, timeout=seconds)  # type: ignore[arg-type]
        assert len(steps) == 5
        assert stopped.value.finished == {i: expected[i] for i in stopped.value.finished}
    assert isinstance(stopped.value, StoppedError)
    assert (stopped.value.status, stopped.value.code) == (504, "timeout")


def test_a_stream_stops_after_any_token(text_model: Model, steps: list[int]) -> None:
    expected = list(text_model.stream("dragoman"))
    assert len(expected) > 3
    for times in range(len(expected)):
        steps.clear()
        tokens = []
        with pytest.raises(CancelError):
            for token in text_model.stream("dragoman", cancel=SetAfter(times)):
                tokens.append(token)
        assert len(steps) == max(0, times - 1)
        assert tokens == expected[: len(tokens)]
        assert len(tokens) == max(0, times - 1)
    assert list(text_model.stream("dragoman", cancel=threading.Event())) == expected


def test_calls_of_other_threads_are_not_affected(text_model: Model) -> None:
    expected = text_model.generate(TEXTS)

    def call(number: int) -> Any:
        if number % 2:
            return text_model.generate(TEXTS)
        with pytest.raises(CancelError):
            text_model.generate(TEXTS, cancel=SetAfter(len(TEXTS) + number))
        return expected

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(call, range(12))) == [expected] * 12


def test_scores_of_earlier_batches_are_kept(text_model: Model) -> None:
    pairs: list[Any] = [("ab", "w3 w4"), ("abc", "w5"), ("1", "w3"), ("a", "w6 w7 w8"), ("b", "w9")]
    expected = text_model.score(pairs)
    never = SetAfter(10**9)
    assert text_model.score(pairs, max_batch_size=2, cancel=never) == expected
    assert never.asked == len(pairs) + 2
    with pytest.raises(CancelError) as stopped:
        text_model.score(pairs, max_batch_size=2, cancel=SetAfter(len(pairs) + 1))
    finished = stopped.value.finished
    assert finished == {index: expected[index] for index in finished}
    assert len(finished) == 3  # a batch of two, and the pair that is rejected
    with pytest.raises(CancelError) as stopped:
        text_model.score(pairs, cancel=SetAfter(2))
    assert stopped.value.finished == {}


@pytest.mark.parametrize("call", ["generate", "stream", "score"])
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"timeout": 0}, "timeout: expected seconds above 0, found 0"),
        ({"timeout": -1.5}, "timeout: expected seconds above 0, found -1.5"),
        ({"timeout": float("nan")}, "timeout: expected seconds above 0, found nan"),
        ({"timeout": float("inf")}, "timeout: expected seconds above 0, found inf"),
        ({"timeout": True}, "timeout: expected seconds above 0, found True"),
        ({"timeout": "3"}, "timeout: expected seconds above 0, found '3'"),
        ({"cancel": True}, r"cancel: expected an object with is_set\(\), such as threading.Event"),
    ],
)
def test_wrong_limits(call: str, limits: dict[str, Any], message: str, text_model: Model) -> None:
    method: Callable[..., Any] = getattr(text_model, call)
    with pytest.raises(DragomanError, match=message):
        method("a" if call == "stream" else [], **limits)


def test_limits_of_a_call_are_not_settings_of_generation(text_model: Model) -> None:
    with pytest.raises(DragomanError, match="timeout"):
        GenerationOptions().replace(timeout=3.0)  # type: ignore[call-arg]
    assert text_model.generate(["a"], timeout=10**400) == text_model.generate(["a"])
