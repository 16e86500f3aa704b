"""The benchmark of servers: arrivals, the search for goodput, the queue of the peers, the soak."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dragoman.benchmarks.serving.clients import Outcome
from dragoman.benchmarks.serving.load import Answer, poisson_arrivals
from dragoman.benchmarks.serving.measuring import (
    Point,
    Searched,
    in_time,
    point_of,
    search,
    standing_of,
)
from dragoman.benchmarks.serving.peer_server import BatchingQueue, Waiting
from dragoman.benchmarks.serving.served import ServedTool
from dragoman.benchmarks.throughput.work import Arrangement

ALONE = Point(1.0, 1.0, 0.05, 0.1, 0.1, 0)


def test_arrivals_are_the_same_each_time_and_as_many_as_asked_for() -> None:
    arrivals = poisson_arrivals(4000, 25.0, 3)
    assert arrivals == poisson_arrivals(4000, 25.0, 3)
    assert arrivals == sorted(arrivals)
    gaps = np.diff(arrivals)
    assert gaps.mean() == pytest.approx(1 / 25, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 25, rel=0.05)  # of an exponential distribution


def point(rate: float, *, slow_from: float) -> Point:
    return Point(rate, rate, 0.1, 0.1 if rate < slow_from else 1.0, 1.0, 0)


@pytest.mark.parametrize("limit", [3.0, 5.0, 37.0, 64.5, 100.0])
def test_the_rate_at_which_requests_are_late_is_narrowed_down(limit: float) -> None:
    asked: list[float] = []

    def at(rate: float) -> Point:
        asked.append(rate)
        return point(rate, slow_from=limit)

    known: dict[float, Point] = {}
    search(at, ALONE.p95, known)
    assert sorted(known) == sorted(asked), "each once"
    good = max((p.rate for p in known.values() if in_time(p, ALONE.p95)), default=0.0)
    late = min(p.rate for p in known.values() if not in_time(p, ALONE.p95))
    assert good < limit <= late
    assert late - good <= max(8.0, late) / 8
    search(at, ALONE.p95, known)
    assert len(asked) == len(known)


def test_requests_that_fail_are_not_in_time() -> None:
    assert in_time(Point(1.0, 1.0, 0.1, 0.4, 0.5, 0), 0.1)
    assert not in_time(Point(1.0, 1.0, 0.1, 0.41, 0.5, 0), 0.1)
    assert not in_time(Point(1.0, 1.0, 0.1, 0.2, 0.5, 1), 0.1)


def test_percentiles_of_answers() -> None:
    answers = [Answer(9.0, 200, [])] * 10 + [Answer(n / 100, 200, []) for n in range(91)]
    found = point_of([*answers, Answer(0.5, 503, [])], 10.0)
    assert found.p50 == pytest.approx(0.455, abs=0.02)
    assert found.p99 == pytest.approx(0.89, abs=0.02)
    assert found.failed == 1


def tool(name: str, kind: str) -> ServedTool:
    return ServedTool(name, lambda a, b: b, lambda a, b: lambda c: None, kind=kind)  # type: ignore[arg-type]


def test_each_tool_stands_beside_the_best_of_the_others() -> None:
    def searched(goodput: float, workers: int = 1) -> Searched:
        points = [point(goodput, slow_from=1e9)]
        return Searched(Arrangement(workers, 1, 8), ALONE, points, 1.0)

    found = {
        "Dragoman fp32": [searched(10.0), searched(30.0, 2)],
        "Dragoman int8": [searched(90.0)],
        "CTranslate2 float32": [searched(20.0)],
        "CTranslate2 int8": [searched(45.0)],
    }
    tools = [tool(name, name.partition(" ")[0].lower()) for name in found]
    fp32, int8, peer, _ = (standing_of(each, found, tools) for each in tools)
    assert (fp32.arrangement.workers, fp32.goodput) == (2, 30.0)
    assert (fp32.best_peer, fp32.ratio) == ("CTranslate2 int8", 0.667)
    assert (fp32.best_fp32_peer, fp32.fp32_ratio) == ("CTranslate2 float32", 1.5)
    assert (int8.ratio, int8.fp32_ratio) == (2.0, None)
    assert peer.fp32_ratio == 1.0
    assert (int8.strict, int8.strict_ratio) == (90.0, 2.0)
    assert (fp32.strict, fp32.strict_fp32_ratio) == (30.0, 1.5)


def test_the_peers_queue_gives_a_worker_all_that_waits() -> None:
    begun, may_go = threading.Semaphore(0), threading.Semaphore(0)
    batches: list[list[list[int]]] = []

    def translate(sources: Sequence[list[int]], longest: int) -> list[list[int]]:
        batches.append(list(sources))
        begun.release()
        may_go.acquire()
        if sources[0] == [99]:
            raise ValueError("a tool's failure")
        return [[token + longest for token in source] for source in sources]

    queue = BatchingQueue(translate, workers=1, batch=3)
    requests = [Waiting([n], 10) for n in (0, 1, 2, 3, 99)]
    queue.put(requests[0])
    assert begun.acquire(timeout=60)
    for request in requests[1:]:
        queue.put(request)
    may_go.release(3)
    assert [request.future.result(60) for request in requests[:4]] == [[10], [11], [12], [13]]
    with pytest.raises(ValueError, match="a tool's failure"):
        requests[4].future.result(60)
    assert batches == [[[0]], [[1], [2], [3]], [[99]]]


def outcome(**changes: object) -> Outcome:
    values: dict[str, object] = {
        "minutes": 2.0,
        "rate": 9.0,
        "answered": 9,
        "refused": 1,
        "vanished": 1,
        "malformed": 1,
        "wrong": 0,
        "unexpected": {},
        "slots": 0,
        "memory_mb": (100.0, 102.0),
    }
    return Outcome(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"wrong": 1}, "expected the library's answers, found 1 others"),
        ({"unexpected": {500: 2}}, "unexpected answers, by status"),
        ({"slots": 3}, "expected no slots in use at the end, found 3"),
        ({"memory_mb": (100.0, 102.1)}, "expected at most 102.0 MB at the end, found 102.1 MB"),
        ({"refused": 0}, "expected some requests of bursts to be refused"),
    ],
)
def test_what_a_soak_objects_to(changes: dict[str, object], words: str | None) -> None:
    problems = outcome(**changes).problems
    assert (problems == []) if words is None else (words in problems[0])


def test_how_dragomans_server_is_started(tmp_path: Path) -> None:
    command = tool("Dragoman fp32", "dragoman").command(tmp_path, Arrangement(2, 1, 64))
    assert command[2:5] == ["dragoman", "serve", str(tmp_path)]
    assert command[5:9] == ["--workers", "2", "--threads", "1"]
