"""A queue of requests of unequal length: what is drawn, who is served when, figures by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.benchmarks.circumstances import Circumstances
from dragoman.benchmarks.harness import ContenderError, Entrant, Interpreter, Turn, Turns
from dragoman.benchmarks.queue.__main__ import main
from dragoman.benchmarks.queue.contenders import (
    Answering,
    contenders,
    load_frozen,
    load_slots,
)
from dragoman.benchmarks.queue.measuring import check_lengths, measurements_of
from dragoman.benchmarks.queue.report import QueueComparison
from dragoman.benchmarks.queue.requests import (
    Answer,
    Queue,
    Request,
    WaitingRoom,
    draw_requests,
)
from dragoman.runtime import load

from ..small_bundle import small_bundle


def drawn(per_second: float | None) -> list[Request]:
    return draw_requests(
        200, tokens=(3, 9), source_lengths=(5, 60), output_lengths=(5, 80), per_second=per_second
    )


def test_requests_are_the_same_at_every_call() -> None:
    waiting, coming = drawn(None), drawn(20.0)
    assert waiting == drawn(None)
    assert coming == drawn(20.0)
    assert [r[:2] for r in waiting] == [r[:2] for r in coming]
    assert {token for r in waiting for token in r.source} == set(range(3, 9))
    for lengths, longest in (
        ([len(r.source) for r in waiting], 60),
        ([r.new_tokens for r in waiting], 80),
    ):
        assert (min(lengths) >= 5, max(lengths) <= longest) == (True, True)
        assert len(set(lengths)) > 40
        assert sum(lengths) / 200 == pytest.approx((5 + longest) / 2, rel=0.1)
    assert {r.arrival for r in waiting} == {0.0}
    arrivals = [r.arrival for r in coming]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(200 / 20, rel=0.2)


class Clock:
    """Time passes by sleeping alone."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def read(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def test_the_longest_of_those_that_wait_are_taken_first() -> None:
    room = WaitingRoom([Request([1] * n, 1) for n in (2, 5, 3, 9, 1)])
    assert [room.take(2, wait=True) for _ in range(4)] == [[3, 1], [2, 0], [4], []]


def test_requests_are_taken_once_they_have_arrived() -> None:
    requests = [
        Request([1] * n, 1, arrival) for n, arrival in ((2, 0.0), (5, 1.5), (7, 1.5), (9, 4))
    ]
    clock = Clock()
    room = WaitingRoom(requests, clock=clock.read, sleep=clock.sleep)
    assert room.take(8, wait=True) == [0]
    assert room.take(8, wait=False) == []
    assert clock.slept == []
    assert room.take(1, wait=True) == [2]
    assert (clock.slept, room.now) == ([1.5], 1.5)
    clock.time += 9
    assert room.take(8, wait=False) == [1, 3]
    assert room.take(8, wait=True) == []


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("small"), positions=40)


REQUESTS = [
    Request([3 + n % 11, 4, *[5 + n % 7] * (n % 5)], new_tokens)
    for n, new_tokens in enumerate((7, 1, 30, 2, 19, 3, 3, 40, 12, 5, 28))
]


def alone(bundle: Path) -> list[list[int]]:
    """The oracle: every request decoded without company."""
    model = load(bundle, threads=1)
    return [
        list(result.tokens)
        for request in REQUESTS
        for result in model.generate([request.source], max_new_tokens=request.new_tokens)
    ]


COMING = [request._replace(arrival=n / 1e4) for n, request in enumerate(REQUESTS)]


@pytest.mark.parametrize("requests", [REQUESTS, COMING], ids=["waiting", "coming"])
@pytest.mark.parametrize("load_bundle", [load_frozen, load_slots])
@pytest.mark.parametrize("max_batch_size", [1, 3, 32])
def test_every_request_is_answered_as_if_alone(
    bundle: Path,
    max_batch_size: int,
    load_bundle: Callable[[Path, int], Answering],
    requests: list[Request],
) -> None:
    queue = Queue(requests, max_batch_size)
    answers = load_bundle(bundle, 1)(queue)
    assert [answer.tokens for answer in answers] == alone(bundle)
    check_lengths(queue, answers)
    for answer, request in zip(answers, requests, strict=True):
        assert answer.finished > request.arrival


def test_answers_of_other_lengths() -> None:
    queue = Queue([Request([5], 2), Request([6], 3)], 8)
    check_lengths(queue, [Answer([1, 2], 0.5), Answer([1, 2, 3], 0.5)])
    for rows in ([[1, 2]], [[1, 2], [1, 2]], [[1], [1, 2, 3]]):
        with pytest.raises(ContenderError, match="expected 2 requests with their numbers of new"):
            check_lengths(queue, [Answer(row, 0.5) for row in rows])


def turns(answers: list[Answer], *seconds: float) -> Turns[list[Answer]]:
    return Turns(Turn(answers, 9.0), [Turn(answers, s) for s in seconds])


def test_figures_by_hand() -> None:
    queue = Queue([Request([5], 2, 0.0), Request([6], 3, 1.0)], 8)
    right = [Answer([1, 2], 2.0), Answer([1, 2, 3], 4.0)]
    other = [Answer([1, 2], 1.0), Answer([1, 2, 4], 1.5)]
    frozen, slots, before, alone = measurements_of(
        {
            Entrant("Dragoman int8, frozen", 2): turns(right, 0.5, 1.0, 2.0),
            Entrant("Dragoman int8, slots", 2): turns(other, 0.25, 0.5, 0.5),
            Entrant("Dragoman int8, frozen, before", 2): turns(right, 0.5, 2.0, 8.0),
            Entrant("Dragoman int8, slots", 1): turns(right, 1.0),
        },
        queue,
    )
    assert frozen.tokens_per_second == (5.0, 2.5, 10.0)
    assert (frozen.ratio, frozen.identical) == ((1.0, 1.0, 1.0), 2)
    assert (slots.contender, slots.threads, slots.max_batch_size) == ("Dragoman int8, slots", 2, 8)
    assert (slots.ratio, slots.identical) == ((2.0, 2.0, 4.0), 1)
    assert (before.ratio, before.identical) == ((0.5, 0.25, 1.0), 2)
    assert (alone.ratio, alone.identical) == (None, None)
    assert (frozen.mean_delay, slots.mean_delay) == ((2.5, 2.5, 2.5), (0.75, 0.75, 0.75))
    waiting = Queue([request._replace(arrival=0.0) for request in queue.requests], 8)
    (only,) = measurements_of({Entrant("Dragoman int8, slots", 1): turns(right, 1.0)}, waiting)
    assert only.mean_delay is None


def test_contenders_of_every_precision(tmp_path: Path) -> None:
    assert [c.name for c in contenders(["fp32", "int8"], None)] == [
        "Dragoman fp32, frozen",
        "Dragoman fp32, slots",
        "Dragoman int8, frozen",
        "Dragoman int8, slots",
    ]
    package = tmp_path / "src" / "dragoman"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    *_, before = contenders(["int4"], Interpreter.of_tree(tmp_path))
    assert (before.name, before.interpreter.package) == ("Dragoman int4, frozen, before", package)


def test_the_record() -> None:
    where = Circumstances("a machine", 0.5, {"dragoman": "0"}, "2026-01-01", "a command")
    comparison = QueueComparison("a shape", 2, (5, 60), (5, 80), None, [1, 2], 3, [], [], where)
    record = json.loads(comparison.to_json())
    assert (record["requests"], record["source_lengths"]) == (2, [5, 60])
    assert (record["arrivals_per_second"], record["machine"]) == (None, "a machine")


def test_a_source_tree_that_does_not_exist(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(main, ["--shape", "tiny", "--before", str(tmp_path)])
    assert outcome.exit_code == 1
    assert "expected a source tree with src/dragoman, found" in outcome.output
