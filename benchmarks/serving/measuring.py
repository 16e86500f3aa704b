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
from .workloads import Workload

SEED = 19
SLOWER = 4.0
"""In time is what takes at most so many times as long, at the 95th percentile, as without load."""
FEWEST = 60
"""Requests at a rate."""
REFINEMENTS = 3
"""How often the range between a rate that is served in time and one that is not is halved."""
WARM_UP = 0.1
"""The share of requests at the beginning that does not count."""
ALONE = 40
"""Requests that are sent one by one to learn what there is without load."""

Progress = Callable[[str], None]


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
class Entry:
    """A tool in one arrangement.

    Attributes:
        directory: that its server loads
        alone: requests sent one by one; `served` says how many a second
    """

    tool: ServedTool
    directory: Path
    arrangement: Arrangement
    alone: Point

    def __str__(self) -> str:
        return f"{self.tool.name}: {self.arrangement}"


@dataclass(frozen=True)
class Searched:
    """An entry under load.

    Attributes:
        points: by rate
        memory_mb: of the process at the end, in MB of 10^6 bytes
        own: the highest rate at which p95 was at most `SLOWER` times that of its own requests alone
        common: at which it was at most `SLOWER` times `fastest`
        fastest: p95 alone of the fastest entry among those in fp32, or among all others
    """

    tool: str
    arrangement: Arrangement
    alone: Point
    points: list[Point]
    memory_mb: float
    own: float
    common: float
    fastest: float


def measure(
    workload: Workload,
    *,
    cores: int,
    seconds: float,
    directory: Path,
    progress: Progress = lambda stage: None,
) -> tuple[list[Searched], list[Failure]]:
    """Measure all tools in all their arrangements; of those that fail, only the reason is reported.

    Args:
        seconds: that requests arrive at each rate
        directory: an existing one, for what tools prepare
        progress: called with a description of each stage as it begins
    """
    entries: list[Entry] = []
    failures: list[Failure] = []
    for number, tool in enumerate(workload.tools):
        try:
            progress(f"preparing {tool.name}")
            prepared = prepare(tool, workload.checkpoint, directory / str(number))
            entries += [
                _alone(tool, prepared, arrangement, workload.bodies, progress)
                for arrangement in tool.arrangements(cores)
            ]
        except ContenderError as error:
            failures.append(Failure(tool.name, str(error)))
    found = []
    for entry in entries:
        fastest = min(e.alone.p95 for e in entries if e.tool.fp32 == entry.tool.fp32)
        try:
            found.append(_under_load(entry, workload, fastest, seconds, progress))
        except ContenderError as error:
            failures.append(Failure(str(entry), str(error)))
    return found, failures


def _alone(
    tool: ServedTool,
    directory: Path,
    arrangement: Arrangement,
    bodies: Sequence[dict[str, Any]],
    progress: Progress,
) -> Entry:
    progress(f"{tool.name}: {arrangement}, alone")
    several = [bodies[i % len(bodies)] for i in range(ALONE)]
    with running(tool.command(directory, arrangement)) as (url, _):
        answers = call_in(HERE, send_one_by_one, url, several)
    alone = point_of(answers, 1 / float(np.mean([answer.seconds for answer in answers])))
    if alone.failed:
        raise ContenderError(f"{alone.failed} of {ALONE} requests failed")
    return Entry(tool, directory, arrangement, alone)


def _under_load(
    entry: Entry, workload: Workload, fastest: float, seconds: float, progress: Progress
) -> Searched:
    command = entry.tool.command(entry.directory, entry.arrangement)
    with running(command) as (url, pid):

        def at(rate: float) -> Point:
            progress(f"{entry}, {rate:.1f} requests a second")
            bodies, count = workload.bodies, max(FEWEST, round(rate * seconds))
            several = [bodies[i % len(bodies)] for i in range(count)]
            arrivals = poisson_arrivals(count, rate, SEED)
            return point_of(call_in(HERE, send_all, url, several, arrivals), rate)

        known: dict[float, Point] = {}
        for alone in (fastest, entry.alone.p95):
            search(at, alone, known, workload.first_rate)
        points = [known[rate] for rate in sorted(known)]
        return Searched(
            entry.tool.name,
            entry.arrangement,
            entry.alone,
            points,
            resident_mb(pid),
            own=highest(points, entry.alone.p95),
            common=highest(points, fastest),
            fastest=fastest,
        )


def search(
    at: Callable[[float], Point], alone: float, known: dict[float, Point], first_rate: float
) -> None:
    """Double the rate until requests are not served in time, then narrow down where that begins.

    Args:
        alone: seconds without load, see `in_time`
        known: what was measured, by rate; what is measured is added
    """

    def good_at(rate: float) -> bool:
        if rate not in known:
            known[rate] = at(rate)
        return in_time(known[rate], alone)

    good, bad = 0.0, first_rate
    while good_at(bad):
        good, bad = bad, bad * 2
    for _ in range(REFINEMENTS):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if good_at(middle) else (good, middle)


def highest(points: Sequence[Point], alone: float) -> float:
    """The highest rate that was served in time."""
    return max((point.rate for point in points if in_time(point, alone)), default=0.0)


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


def resident_mb(pid: int) -> float:
    """What a process holds now, in MB of 10^6 bytes; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kilobytes * 1024 / 1e6, 1)
