"""The harness: interleaved rounds, contenders that fail, what is reported of each process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dragoman.benchmarks.harness import (
    Contender,
    ContenderError,
    Results,
    Turn,
    Turns,
    fastest,
    in_own_process,
    rounds,
    spread,
    take_turns,
    unchanged,
)
from dragoman.errors import DragomanError

Doubler = Callable[[int], tuple[int, int, float]]
"""A number -> its double, the process that computed it, and when."""

Made = Contender[int, tuple[int, int, float]]


def load(directory: Path, threads: int) -> Doubler:
    return lambda number: (2 * number, os.getpid(), time.monotonic())


def load_failing_at(directory: Path, threads: int, *, number: int) -> Doubler:
    works = load(directory, threads)

    def perform(work: int) -> tuple[int, int, float]:
        if work == number:
            raise ValueError(f"no doubling\nof {number}")
        return works(work)

    return perform


def load_dying(directory: Path, threads: int) -> Doubler:
    return lambda number: os._exit(3)


def load_nothing(directory: Path, threads: int) -> Doubler:
    raise OSError("no such model")


def prepare_nothing(checkpoint: Path, directory: Path) -> Path:
    raise DragomanError("expected another checkpoint")


def prepare_copy(checkpoint: Path, directory: Path) -> Path:
    directory.mkdir()
    (directory / "model").write_bytes((checkpoint / "model").read_bytes() * 2)
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "model").write_bytes(bytes(1_000_000))
    return directory


@pytest.fixture
def take(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Results[tuple[int, int, float]]]:
    monkeypatch.setattr(rounds, "SETTLE_SECONDS", 0.0)

    def take(*contenders: Made, **options: object) -> Results[tuple[int, int, float]]:
        return take_turns(
            contenders,
            {"three": 3, "five": 5},
            checkpoint=checkpoint,
            directory=tmp_path,
            threads=1,
            rounds=2,
            **options,  # type: ignore[arg-type]
        )

    return take


Take = Callable[..., Results[tuple[int, int, float]]]


def test_rounds_are_interleaved_after_a_warm_up(take: Take) -> None:
    stages: list[str] = []
    results = take(
        Contender("one", unchanged, load),
        Contender("two", prepare_copy, load),
        progress=stages.append,
    )
    assert stages[:3] == ["preparing one", "preparing two", "three, round 0 of 2"]
    assert stages[-1] == "five, round 2 of 2"
    assert [(name, list(turns)) for name, turns in results.turns.items()] == [
        ("three", ["one", "two"]),
        ("five", ["one", "two"]),
    ]
    for number, turns in zip((3, 5), results.turns.values(), strict=True):
        all_turns = {name: [t.warm_up, *t.counted] for name, t in turns.items()}
        assert {turn.outcome[0] for taken in all_turns.values() for turn in taken} == {2 * number}
        assert [len(t.seconds) for t in turns.values()] == [2, 2]
        order = sorted(
            (turn.outcome[2], name) for name, taken in all_turns.items() for turn in taken
        )
        assert [name for _, name in order] == ["one", "two"] * 3
    processes = {
        name: {turns[name].outcome[1] for turns in results.turns.values()}
        for name in ("one", "two")
    }
    assert all(len(ids) == 1 for ids in processes.values())
    assert len({os.getpid()}.union(*processes.values())) == 3
    assert [(f.contender, f.disk_mb) for f in results.footprints] == [("one", 1.0), ("two", 2.0)]
    assert all(f.load_seconds >= 0 and f.peak_memory_mb > 1 for f in results.footprints)


def test_a_contender_that_fails_is_reported_and_left_out(take: Take) -> None:
    results = take(
        Contender("good", unchanged, load),
        Contender("fails late", unchanged, partial(load_failing_at, number=5)),
        Contender("dies", unchanged, load_dying),
        Contender("loads nothing", unchanged, load_nothing),
        Contender("prepares nothing", prepare_nothing, load),
    )
    assert {failure.contender: failure.reason for failure in results.failures} == {
        "loads nothing": "loading: OSError: no such model",
        "prepares nothing": "preparing: expected another checkpoint",
        "dies": "its process ended unexpectedly, status 3",
        "fails late": "working: ValueError: no doubling of 5",
    }
    assert [list(turns) for turns in results.turns.values()] == [["good"], ["good"]]
    assert [f.contender for f in results.footprints] == ["good"]


def test_an_outcome_that_is_rejected_is_a_failure(take: Take) -> None:
    def check(work: int, outcome: tuple[int, int, float]) -> None:
        if work == 5:
            raise ContenderError(f"found {outcome[0]}")

    results = take(Contender("wrong", unchanged, load), check=check)
    assert [(f.contender, f.reason) for f in results.failures] == [("wrong", "found 10")]
    assert (results.turns, results.footprints) == ({"three": {}, "five": {}}, [])


def test_a_contender_that_is_not_timed_answers_once(take: Take) -> None:
    results = take(
        Contender("answers", unchanged, load, timed=False), Contender("a", unchanged, load)
    )
    answers = results.turns["five"]["answers"]
    assert (answers.outcome[0], answers.counted) == (10, [])
    assert [f.contender for f in results.footprints] == ["a"]


def test_without_a_required_contender_there_are_no_results(take: Take) -> None:
    with pytest.raises(ContenderError, match="needed: working: ValueError: no doubling of 3"):
        take(
            Contender("other", unchanged, load),
            Contender("needed", unchanged, partial(load_failing_at, number=3), required=True),
        )


def test_the_latest_outcome_counts() -> None:
    first, second = Turn("first", 1.0), Turn("second", 2.0)
    assert Turns(first, []).outcome == "first"
    assert Turns(first, [second]).outcome == "second"
    assert Turns(first, [second]).seconds == [2.0]


def test_spread_and_fastest_by_hand() -> None:
    assert spread([0.3, 0.1, 0.2, 0.9], 1e3) == (250.0, 100.0, 900.0)
    medians = {"tool a": 2.0, "tool b": 1.0, "ours": 0.5}
    assert fastest(medians, "tool") == "tool b"
    assert fastest(medians, "other") is None


def test_a_function_in_its_own_process() -> None:
    assert in_own_process(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        in_own_process(divmod, 1, 0)
