"""The harness: interleaved rounds, contenders that fail, what is reported of each process."""

from __future__ import annotations

import os
import time
import venv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.benchmarks.compare.rounds import (
    Contender,
    Entrant,
    Results,
    Turn,
    Turns,
    against,
    paired,
    spread,
    take_turns,
    unchanged,
)
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.training import TRAINING
from dragoman.benchmarks.processes import HERE, Interpreter, ProcessError, call_in
from dragoman.errors import DragomanError

from .doubles import prepare_nothing

Doubler = Callable[[int], tuple[int, int, float]]
"""A number -> its double, the process that computed it, and when."""

Made = Contender[int, tuple[int, int, float]]


def load(directory: Path, threads: int) -> Doubler:
    return lambda number: (2 * number, os.getpid(), time.monotonic())


def load_repeater(directory: Path, threads: int) -> Doubler:
    """Answers with the number of threads in place of the double."""
    return lambda number: (threads, os.getpid(), time.monotonic())


def load_failing_on_two_threads(directory: Path, threads: int) -> Doubler:
    return load_failing_at(directory, threads, number=5 if threads == 2 else 0)


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
def take(checkpoint: Path, tmp_path: Path) -> Callable[..., Results[tuple[int, int, float]]]:

    def take(
        *contenders: Made, threads: Sequence[int] = (1,), **options: object
    ) -> Results[tuple[int, int, float]]:
        return take_turns(
            contenders,
            {"three": 3, "five": 5},
            checkpoint=checkpoint,
            directory=tmp_path,
            threads=threads,
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
    one, two = Entrant("one", 1), Entrant("two", 1)
    assert [(name, list(turns)) for name, turns in results.turns.items()] == [
        ("three", [one, two]),
        ("five", [one, two]),
    ]
    for number, turns in zip((3, 5), results.turns.values(), strict=True):
        all_turns = {name: [t.warm_up, *t.counted] for name, t in turns.items()}
        assert {turn.outcome[0] for taken in all_turns.values() for turn in taken} == {2 * number}
        assert [len(t.seconds) for t in turns.values()] == [2, 2]
        order = sorted(
            (turn.outcome[2], name) for name, taken in all_turns.items() for turn in taken
        )
        assert [entrant for _, entrant in order] == [one, two] * 3
    processes = {
        name: {turns[name].outcome[1] for turns in results.turns.values()} for name in (one, two)
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
    assert [list(turns) for turns in results.turns.values()] == [[Entrant("good", 1)]] * 2
    assert [f.contender for f in results.footprints] == ["good"]


def test_an_outcome_that_is_rejected_is_a_failure(take: Take) -> None:
    def check(work: int, outcome: tuple[int, int, float]) -> None:
        if work == 5:
            raise ProcessError(f"found {outcome[0]}")

    results = take(Contender("wrong", unchanged, load), check=check)
    assert [(f.contender, f.reason) for f in results.failures] == [("wrong", "found 10")]
    assert (results.turns, results.footprints) == ({"three": {}, "five": {}}, [])


def test_a_contender_that_is_not_timed_answers_once(take: Take) -> None:
    results = take(
        Contender("answers", unchanged, load, timed=False), Contender("a", unchanged, load)
    )
    answers = results.turns["five"][Entrant("answers", 1)]
    assert (answers.outcome[0], answers.counted) == (10, [])
    assert [f.contender for f in results.footprints] == ["a"]


def test_every_number_of_threads_takes_part(take: Take, tmp_path: Path) -> None:
    """Each in a process of its own; a contender is prepared once, and one that is not timed is
    loaded with the highest number only."""
    results = take(
        Contender("answers", unchanged, load_repeater, timed=False),
        Contender("a", prepare_copy, load_repeater),
        threads=[1, 2],
    )
    turns = results.turns["five"]
    assert list(turns) == [Entrant("answers", 2), Entrant("a", 1), Entrant("a", 2)]
    assert [t.outcome[0] for t in turns.values()] == [2, 1, 2]
    assert len({t.outcome[1] for t in turns.values()}) == 3
    assert len(turns[Entrant("a", 2)].counted) == 2
    assert [(f.contender, f.threads) for f in results.footprints] == [("a", 1), ("a", 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["by-0", "checkpoint"]
    assert [path.name for path in (tmp_path / "by-0").iterdir()] == ["1"]
    assert str(Entrant("a", 1)) == "a, 1 thread"
    assert str(Entrant("a", 2)) == "a, 2 threads"


def test_a_contender_that_fails_with_some_threads_fails(take: Take) -> None:
    results = take(
        Contender("good", unchanged, load),
        Contender("fails", unchanged, load_failing_on_two_threads),
        threads=[1, 2],
    )
    assert [(f.contender, f.reason) for f in results.failures] == [
        ("fails", "working: ValueError: no doubling of 5")
    ]
    good = [Entrant("good", 1), Entrant("good", 2)]
    assert [list(turns) for turns in results.turns.values()] == [good, good]
    assert [Entrant(f.contender, f.threads) for f in results.footprints] == good


def error_class() -> tuple[str, str]:
    """The file and the docstring of what this process imports as the base class of errors."""
    import dragoman.errors

    return dragoman.errors.__file__, dragoman.errors.DragomanError.__doc__ or ""


@pytest.fixture
def older_tree(tmp_path: Path) -> Path:
    """A source tree with another `dragoman`, which has no benchmarks."""
    package = tmp_path / "older" / "src" / "dragoman"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "errors.py").write_text(
        'class DragomanError(Exception):\n    """Of the older tree."""\n', encoding="utf-8"
    )
    return tmp_path / "older"


def test_another_source_tree_is_measured_by_these_benchmarks(
    older_tree: Path, take: Take, tmp_path: Path
) -> None:
    """What it prepares is kept apart: its files may be of another format."""
    older = Interpreter.of_tree(older_tree)
    file, text = call_in(older, error_class)
    assert (file, text) == (str(older.package / "errors.py"), "Of the older tree.")
    assert call_in(HERE, error_class) == error_class()
    results = take(
        Contender("now", prepare_copy, load), Contender("b", prepare_copy, load, interpreter=older)
    )
    assert [e.contender for e in results.turns["five"]] == ["now", "b"]
    assert not results.failures
    prepared = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("by-*/*")}
    assert prepared == {"by-0/0", "by-1/1"}


def test_interpreters_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="expected a source tree with src/dragoman, found"):
        Interpreter.of_tree(tmp_path)
    with pytest.raises(DragomanError, match="expected the Python of an environment, found"):
        Interpreter.of_environment(tmp_path / "bin" / "python")


def test_another_environment_has_none_of_these_libraries(tmp_path: Path, take: Take) -> None:
    venv.create(tmp_path / "environment", symlinks=True)
    bare = Interpreter.of_environment(tmp_path / "environment" / "bin" / "python")
    results = take(Contender("bare", unchanged, load, interpreter=bare))
    (failure,) = results.failures
    assert failure.reason == ("preparing: starting: ModuleNotFoundError: No module named 'numpy'")


def test_without_a_required_contender_there_are_no_results(take: Take) -> None:
    with pytest.raises(ProcessError, match="needed: working: ValueError: no doubling of 3"):
        take(
            Contender("other", unchanged, load),
            Contender("needed", unchanged, partial(load_failing_at, number=3), required=True),
        )


def test_the_latest_outcome_counts() -> None:
    first, second = Turn("first", 1.0), Turn("second", 2.0)
    assert Turns(first, []).outcome == "first"
    assert Turns(first, [second]).outcome == "second"
    assert Turns(first, [second]).seconds == [2.0]


def test_spread_and_ratios_by_hand() -> None:
    assert spread([0.3, 0.1, 0.2, 0.9], 1e3) == (250.0, 100.0, 900.0)
    assert paired([2.0, 9.0, 4.0], [1.0, 3.0, 8.0]) == (2.0, 0.5, 3.0)
    peers = {"tool a": 2.0, "tool b": 1.0}
    assert against(0.25, peers) == {"best_peer": "tool b", "ratio": 4.0}
    assert against(0.25, peers, "fp32") == {"best_fp32_peer": "tool b", "fp32_ratio": 4.0}
    assert against(0.25, {}) == {"best_peer": None, "ratio": None}


def test_a_function_in_its_own_process() -> None:
    assert call_in(HERE, os.getpid) != os.getpid()
    with pytest.raises(ProcessError, match="ZeroDivisionError"):
        call_in(HERE, divmod, 1, 0)


def test_a_training_of_fewer_steps_than_turns_is_refused(tmp_path: Path) -> None:
    given = SimpleNamespace(steps=5, rounds=5, data=tmp_path)
    with pytest.raises(DragomanError, match="--steps: expected at least 6, one for each"):
        TRAINING.measure(Run(tmp_path), given)
