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
FIRST_RATE = 8.0
FEWEST = 80
"""Requests at a rate."""
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
        strict, strict_ratio, strict_fp32_ratio: the same where p95 was at most `SLOWER` times the
            median of `alone`
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
    strict: float
    strict_ratio: float | None
    strict_fp32_ratio: float | None
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
        return self._highest(self.alone.p95)

    @property
    def strict(self) -> float:
        return self._highest(self.alone.p50)

    def _highest(self, alone: float) -> float:
        good = [point.rate for point in self.points if in_time(point, alone)]
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
            count = max(FEWEST, round(rate * seconds))
            several = [bodies[i % len(bodies)] for i in range(count)]
            arrivals = poisson_arrivals(count, rate, SEED)
            return point_of(call_in(HERE, send_all, url, several, arrivals), rate)

        known: dict[float, Point] = {}
        for seconds_alone in (alone.p50, alone.p95):
            search(at, seconds_alone, known)
        points = [known[rate] for rate in sorted(known)]
        return Searched(arrangement, alone, points, resident_mb(pid))


def search(at: Callable[[float], Point], alone: float, known: dict[float, Point]) -> None:
    """Double the rate until requests are not served in time, then narrow down where that begins.

    Args:
        alone: seconds without load, see `in_time`
        known: what was measured, by rate; what is measured is added
    """

    def good_at(rate: float) -> bool:
        if rate not in known:
            known[rate] = at(rate)
        return in_time(known[rate], alone)

    good, bad = 0.0, FIRST_RATE
    while good_at(bad):
        good, bad = bad, bad * 2
    for _ in range(REFINEMENTS):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if good_at(middle) else (good, middle)


def in_time(point: Point, alone: float) -> bool:
    """
    Args:
        alone: seconds of a request without load
    """
    return not point.failed and point.p95 <= SLOWER * alone


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

    def strictly_beside(others: list[str]) -> float | None:
        most = max((s.strict for name in others for s in found[name]), default=0.0)
        return round(strict / most, 3) if most else None

    strict = max(searched.strict for searched in found[tool.name])
    peers = [other for other in tools if other.peer]
    exact = [peer.name for peer in peers if peer.fp32] if tool.fp32 else []
    return Served(
        tool.name,
        own.arrangement,
        own.alone,
        own.points,
        own.goodput,
        *beside([peer.name for peer in peers]),
        *beside(exact),
        strict,
        strictly_beside([peer.name for peer in peers]),
        strictly_beside(exact),
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
