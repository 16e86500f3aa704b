"""The benchmark of servers: arrivals, the search for goodput, the queue of the peers, the soak."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.benchmarks.compare.contenders.text import peers
from dragoman.benchmarks.compare.rounds import unchanged
from dragoman.benchmarks.compare.serving.goodput import (
    Point,
    ServedTool,
    ServerKind,
    highest,
    in_time,
    point_of,
    search,
    served,
    standings,
)
from dragoman.benchmarks.compare.serving.load import Answer, poisson_arrivals
from dragoman.benchmarks.compare.serving.peer_server import (
    BatchingQueue,
    text_model,
)
from dragoman.benchmarks.compare.serving.soak import (
    ATTEMPT_SECONDS,
    OPTIONS,
    Clients,
    problems,
    saturation,
    streamed_result,
)
from dragoman.benchmarks.processes import ProcessError
from dragoman.runtime.serving.arrangement import Arrangement

from .doubles import load_sevens

UNLOADED = Point(1.0, 1.0, 0.05, 0.1, 0.1, 0)


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
    requested: list[float] = []

    def at(rate: float) -> Point:
        requested.append(rate)
        return point(rate, slow_from=limit)

    known: dict[float, Point] = {}
    search(at, UNLOADED.p95, known, 8.0)
    assert sorted(known) == sorted(requested), "each once"
    good = highest(list(known.values()), UNLOADED.p95)
    late = min(p.rate for p in known.values() if not in_time(p, UNLOADED.p95))
    assert good < limit <= late
    assert late - good <= max(8.0, late) / 8
    search(at, UNLOADED.p95, known, 8.0)
    assert len(requested) == len(known)


def test_requests_that_fail_are_not_in_time() -> None:
    assert in_time(Point(1.0, 1.0, 0.1, 0.4, 0.5, 0), 0.1)
    assert not in_time(Point(1.0, 1.0, 0.1, 0.41, 0.5, 0), 0.1)
    assert not in_time(Point(1.0, 1.0, 0.1, 0.2, 0.5, 1), 0.1)


def test_percentiles_of_answers() -> None:
    answers = [Answer(9.0, 200)] * 10 + [Answer(n / 100, 200) for n in range(91)]
    found = point_of([*answers, Answer(0.5, 503)], 10.0)
    assert found.p50 == pytest.approx(0.455, abs=0.02)
    assert found.p99 == pytest.approx(0.89, abs=0.02)
    assert found.failed == 1


def tool(name: str) -> ServedTool:
    kinds: dict[str, ServerKind] = {"Dragoman": "dragoman", "CTranslate2": "ctranslate2"}
    maker, mode = name.split()
    (tool,) = served(peers(maker, [mode], unchanged, load_sevens), kinds[maker])
    return replace(tool, peer=maker != "Dragoman")


def searched(name: str, own: float, common: float, workers: int = 1) -> dict[str, Any]:
    arrangement = Arrangement(workers, 1, 8)
    return {"tool": name, "arrangement": arrangement, "own": own, "common": common}


def test_each_tool_is_compared_with_the_best_of_the_others() -> None:
    found = [
        searched("Dragoman fp32", 10.0, 9.0),
        searched("Dragoman fp32", 30.0, 6.0, 2),
        searched("Dragoman int8", 90.0, 80.0),
        searched("CTranslate2 float32", 20.0, 3.0),
        searched("CTranslate2 int8", 45.0, 0.0),
    ]
    names = dict.fromkeys(each["tool"] for each in found)
    tools = [tool(name) for name in [*names, "CTranslate2 absent"]]
    fp32, int8, peer, _ = standings(found, tools)
    assert (fp32["own"]["arrangement"].workers, fp32["own"]["rate"]) == (2, 30.0)
    assert (fp32["own"]["best_peer"], fp32["own"]["ratio"]) == ("CTranslate2 int8", 0.667)
    assert (fp32["own_in_fp32"]["best_peer"], fp32["own_in_fp32"]["ratio"]) == (
        "CTranslate2 float32",
        1.5,
    )
    assert (int8["own"]["ratio"], int8["own_in_fp32"]) == (2.0, None)
    assert peer["own_in_fp32"]["ratio"] == 1.0
    assert (fp32["common"]["arrangement"].workers, fp32["common"]["ratio"]) == (1, 3.0)
    assert (int8["common"]["best_peer"], int8["common"]["ratio"]) == ("CTranslate2 int8", None)


def test_there_is_no_ratio_to_peers_that_are_never_in_time() -> None:
    alone, late = searched("Dragoman int8", 9.0, 9.0), searched("CTranslate2 int8", 0.0, 0.0)
    tools = [tool("Dragoman int8"), tool("CTranslate2 int8")]
    ours, _ = standings([alone, late], tools)
    assert (ours["own"]["best_peer"], ours["own"]["ratio"]) == ("CTranslate2 int8", None)
    (single,) = standings([alone], tools[:1])
    assert (single["own"]["best_peer"], single["own"]["ratio"]) == (None, None)


def test_a_text_of_a_peer_s_batch_may_be_as_long_as_the_longest() -> None:
    requested: list[tuple[list[list[int]], int]] = []

    def translate(sources: Sequence[list[int]], longest: int) -> list[list[int]]:
        requested.append((list(sources), longest))
        return [source[::-1] for source in sources]

    model = text_model(translate)
    results = model.compute([([1, 2], 5), ([3, 4], 9)])
    assert results == [{"tokens": [2, 1]}, {"tokens": [4, 3]}]
    assert requested == [([[1, 2], [3, 4]], 9)]


def test_the_peers_queue_gives_a_worker_all_that_waits() -> None:
    begun, may_go = threading.Semaphore(0), threading.Semaphore(0)
    batches: list[list[int]] = []

    def compute(items: Sequence[int]) -> list[dict[str, int]]:
        batches.append(list(items))
        begun.release()
        may_go.acquire()
        if items[0] == 99:
            raise ValueError("a tool's failure")
        return [{"tripled": 3 * item} for item in items]

    queue = BatchingQueue(compute, workers=1, batch=3)
    futures = [queue.put(0)]
    assert begun.acquire(timeout=60)
    futures += map(queue.put, (1, 2, 3, 99))
    may_go.release(3)
    assert [future.result(60) for future in futures[:4]] == [{"tripled": 3 * n} for n in range(4)]
    with pytest.raises(ValueError, match="a tool's failure"):
        futures[4].result(60)
    assert batches == [[0], [1, 2, 3], [99]]


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
    right = {"wrong": 0, "unexpected": {}, "slots": 0, "refused": 1, "memory_mb": (100.0, 102.0)}
    found = problems(right | changes)
    assert (found == []) if words is None else (words in found[0])


def test_a_server_is_saturated_when_it_refuses() -> None:
    """One that answers 300 requests a second, after a second."""
    requested: list[float] = []

    def flood(rate: float) -> list[tuple[float, int]]:
        requested.append(rate)
        arrivals = np.arange(0.0, ATTEMPT_SECONDS, 1 / rate)
        if rate <= 300:
            return [(at, 200) for at in arrivals]
        answered = np.arange(1.0, ATTEMPT_SECONDS + 0.5, 1 / 300)
        return [*((at, 200) for at in answered), *((at, 429) for at in arrivals[160::4])]

    assert saturation(flood) == pytest.approx(300, rel=0.01)
    assert requested == [50.0, 100.0, 200.0, 400.0]
    with pytest.raises(ProcessError, match="requests a second to be refused"):
        saturation(lambda rate: [(ATTEMPT_SECONDS / 2, 200)])


STREAM = """data: {"id": 3, "text": "A", "log_probability": -0.5, "is_end": false}

data: {"id": 4, "text": "", "log_probability": -0.5, "is_end": false}

data: {"id": 2, "text": "", "log_probability": -0.5, "is_end": true}

event: end
data: {"text": "A\ufffd", "tokens": [3, 4]}

"""


def test_the_result_of_a_stream() -> None:
    assert streamed_result(STREAM) == {"text": "A\ufffd", "tokens": [3, 4]}
    assert streamed_result(STREAM.replace("event: end", "event: error")) is None
    assert streamed_result(STREAM.replace('"id": 4', '"id": 5')) is None
    assert streamed_result(STREAM.replace('"text": "A",', '"text": "B",')) is None
    assert streamed_result('event: end\ndata: {"text": "", "tokens": []}\n\n') is not None


@pytest.mark.parametrize("kind", ["stream", "answer", None])
def test_streams_and_other_answers_are_compared(kind: str | None) -> None:
    """A server that says something wrong in one of them."""
    from aiohttp import web
    from aiohttp.test_utils import TestServer

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        found = "stream" if body["stream"] else "answer"
        result: dict[str, Any] = {"text": "no" if found == kind else "", "tokens": []}
        if body["stream"]:
            return web.Response(text=f"event: end\ndata: {json.dumps(result)}\n\n")
        return web.json_response({"results": [result]})

    async def flooded() -> tuple[Clients, list[tuple[float, int]]]:
        app = web.Application()
        app.router.add_post("/v1/generate", generate)
        expected = [[{"text": "", "tokens": []}] for _ in OPTIONS]
        async with TestServer(app) as server:
            clients = Clients(f"http://127.0.0.1:{server.port}", 0, ["a"], expected)
            return clients, await clients.flood(400.0, 0.25)

    clients, received = asyncio.run(flooded())
    assert [status for _, status in received] == [200] * 100
    wrong, streamed = clients.counts["wrong"], clients.counts["streamed"]
    assert clients.counts["answered"] + wrong == 100
    assert (wrong > 0) == (kind is not None)
    assert (streamed == 0) == (kind == "stream")


def test_how_dragomans_server_is_started(tmp_path: Path) -> None:
    command = tool("Dragoman fp32").command(tmp_path, Arrangement(2, 1, 64))
    assert command[2:5] == ["dragoman", "serve", str(tmp_path)]
    assert command[5:10] == ["--greedy", "--workers", "2", "--threads", "1"]
