"""How many requests a second a tool serves in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..harness import HERE, ContenderError, Failure, call_in, prepare
from ..throughput.work import Arrangement
from .load import Answer, poisson_arrivals, send_all, send_one_by_one
from .served import ServedTool, running

SEED = 19
SLOWER = 4.0
"""In time is what takes at most so many times as long, at the 95th percentile, as without load."""
FIRST_RATE = 4.0
REFINEMENTS = 3
"""How often the range between a rate that is served in time and one that is not is halved."""
WARM_UP = 0.1
"""The share of requests at the beginning that does not count."""
ALONE = 40
"""Requests that are sent one by one to learn what there is without load."""


@dataclass(frozen=True)
class Point:
    """What requests met at a rate, in seconds.

    Attributes:
        rate: requests a second that were sent
        served: requests a second that were answered
        failed: requests without an answer, or with another than 200
    """

    rate: float
    served: float
    p50: float
    p95: float
    p99: float
    failed: int


@dataclass(frozen=True)
class Served:
    """A tool in its best arrangement.

    Attributes:
        alone: percentiles of requests sent one by one; `served` says how many a second
        points: by rate
        goodput: the highest rate at which p95 was at most `SLOWER` times that of `alone`
        best_peer, ratio: the best other tool, and this one's goodput over its; None if there is
            none
        best_fp32_peer, fp32_ratio: the same among those that compute in fp32; None of others
        tried: goodputs of all arrangements
        memory_mb: of the process at the end, in MB of 10^6 bytes
    """

    tool: str
    arrangement: Arrangement
    alone: Point
    points: list[Point]
    goodput: float
    best_peer: str | None
    ratio: float | None
    best_fp32_peer: str | None
    fp32_ratio: float | None
    tried: list[tuple[Arrangement, float]]
    memory_mb: float


@dataclass(frozen=True)
class Searched:
    """One arrangement of a tool."""

    arrangement: Arrangement
    alone: Point
    points: list[Point]
    memory_mb: float

    @property
    def goodput(self) -> float:
        good = [point.rate for point in self.points if in_time(point, self.alone)]
        return max(good, default=0.0)


def measure(
    tools: Sequence[ServedTool],
    sources: Sequence[list[int]],
    *,
    max_new_tokens: int,
    cores: int,
    seconds: float,
    checkpoint: Path,
    directory: Path,
    progress: Callable[[str], None] = lambda stage: None,
) -> tuple[list[Served], list[Failure]]:
    """Measure the tools; of those that fail, only the reason is reported.

    Args:
        sources: of requests, again and again
        seconds: that requests arrive at each rate
        checkpoint: of a model whose outputs end
        directory: an existing one, for what tools prepare
        progress: called with a description of each stage as it begins
    """
    bodies = [{"source": source, "max_new_tokens": max_new_tokens} for source in sources]
    found: dict[str, list[Searched]] = {}
    failures: list[Failure] = []
    for number, tool in enumerate(tools):
        try:
            progress(f"preparing {tool.name}")
            prepared = prepare(tool, checkpoint, directory / str(number))
            for arrangement in tool.arrangements(cores):
                say = f"{tool.name}: {arrangement}"
                searched = _search_at(tool, prepared, arrangement, bodies, seconds, progress, say)
                found.setdefault(tool.name, []).append(searched)
        except ContenderError as error:
            failures.append(Failure(tool.name, str(error)))
    working = [tool for tool in tools if tool.name in found]
    return [standing_of(tool, found, working) for tool in working], failures


def _search_at(
    tool: ServedTool,
    directory: Path,
    arrangement: Arrangement,
    bodies: Sequence[dict[str, Any]],
    seconds: float,
    progress: Callable[[str], None],
    say: str,
) -> Searched:
    with running(tool.command(directory, arrangement)) as (url, pid):
        progress(f"{say}, alone")
        answers = call_in(HERE, send_one_by_one, url, list(bodies[:ALONE]))
        alone = point_of(answers, 1 / float(np.mean([answer.seconds for answer in answers])))

        def at(rate: float) -> Point:
            progress(f"{say}, {rate:.1f} requests a second")
            count = max(100, round(rate * seconds))
            several = [bodies[i % len(bodies)] for i in range(count)]
            arrivals = poisson_arrivals(count, rate, SEED)
            return point_of(call_in(HERE, send_all, url, several, arrivals), rate)

        points = search(at, alone)
        return Searched(arrangement, alone, points, resident_mb(pid))


def search(at: Callable[[float], Point], alone: Point) -> list[Point]:
    """Double the rate until requests are not served in time, then narrow down where that begins.

    Returns:
        the points that were measured, by rate
    """
    points = [at(FIRST_RATE)]
    while in_time(points[-1], alone):
        points.append(at(points[-1].rate * 2))
    good = points[-2].rate if len(points) > 1 else 0.0
    bad = points[-1].rate
    for _ in range(REFINEMENTS):
        middle = at((good + bad) / 2)
        points.append(middle)
        good, bad = (middle.rate, bad) if in_time(middle, alone) else (good, middle.rate)
    return sorted(points, key=lambda point: point.rate)


def in_time(point: Point, alone: Point) -> bool:
    return not point.failed and point.p95 <= SLOWER * alone.p95


def point_of(answers: Sequence[Answer], rate: float) -> Point:
    """Without the first ones, which find an empty server."""
    counted = answers[int(len(answers) * WARM_UP) :]
    seconds = np.array([answer.seconds for answer in counted])
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99]).tolist()
    failed = sum(answer.status != 200 for answer in answers)
    arrived = np.arange(len(counted)) / rate
    span = float((arrived + seconds).max())
    return Point(
        round(rate, 3),
        round(len(counted) / span, 3),
        round(p50, 5),
        round(p95, 5),
        round(p99, 5),
        failed,
    )


def standing_of(
    tool: ServedTool, found: dict[str, list[Searched]], tools: Sequence[ServedTool]
) -> Served:
    """A tool's best arrangement, beside the best of the others."""
    best = {name: max(each, key=lambda s: s.goodput) for name, each in found.items()}
    own = best[tool.name]

    def beside(others: list[str]) -> tuple[str | None, float | None]:
        name = max(others, key=lambda other: best[other].goodput, default=None)
        if name is None or not best[name].goodput:
            return name, None
        return name, round(own.goodput / best[name].goodput, 3)

    peers = [other for other in tools if other.peer]
    return Served(
        tool.name,
        own.arrangement,
        own.alone,
        own.points,
        own.goodput,
        *beside([peer.name for peer in peers]),
        *beside([peer.name for peer in peers if peer.fp32] if tool.fp32 else []),
        [(searched.arrangement, searched.goodput) for searched in found[tool.name]],
        own.memory_mb,
    )


def resident_mb(pid: int) -> float:
    """What a process holds now, in MB of 10^6 bytes; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kilobytes * 1024 / 1e6, 1)
