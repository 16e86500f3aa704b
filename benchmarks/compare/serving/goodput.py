"""Searches for the goodput of servers: the highest request rate within a latency limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dragoman.runtime.serving.arrangement import Arrangement

from ...processes import HERE, ProcessError, call_in
from ...processes.memory import memory_mb
from ..record import Row
from ..rounds import Contender, Failure, prepare
from ..task import Run
from .load import SEED, Answer, poisson_arrivals, running, send_all

PEER_SERVER = "dragoman.benchmarks.compare.serving.peer_server"
ServerKind = Literal["dragoman", "ctranslate2", "hugging-face", "faster-whisper"]

SLOWER = 4.0
"""In time is what takes at most so many times as long, at the 95th percentile, as without load."""
FEWEST = 60
REFINEMENTS = 3
"""How often the range between a rate that is served in time and one that is not is halved."""
WARM_UP = 0.1
"""The share of requests at the beginning that does not count."""
UNLOADED = 40
"""Requests that are sent one by one to learn what there is without load."""


@dataclass(frozen=True)
class ServedTool(Contender[None, None]):
    """A tool as a server: Dragoman's, or another tool behind the same HTTP layer."""

    kind: ServerKind = "dragoman"
    batches: tuple[int, ...] = (64,)

    def arrangements(self, cores: int) -> list[Arrangement]:
        """Return the arrangements of one worker with all cores, and of one worker per core.

        Hugging Face's models share one thread pool, so they have one worker.
        """
        workers = (1,) if self.kind == "hugging-face" else tuple(sorted({cores, 1}, reverse=True))
        return [Arrangement(n, cores // n, batch) for n in workers for batch in self.batches]

    def command(self, directory: Path, arrangement: Arrangement) -> list[str]:
        """Return the command that starts the server."""
        workers, threads, batch = map(str, arrangement)
        common = ["--workers", workers, "--threads", threads, "--batch-size", batch, "--port", "0"]
        if self.kind == "dragoman":
            serve = ["dragoman", "serve", str(directory), "--greedy"]
            common += ["--max-waiting", "100000"]
        else:
            mode = self.name.rpartition(" ")[2]  # see `text.peers`
            serve = [PEER_SERVER, self.kind, str(directory), "--compute-type", mode]
        return [sys.executable, "-m", *serve, *common]


def served(
    contenders: Iterable[Contender[Any, Any]], kind: ServerKind, *batches: int
) -> list[ServedTool]:
    """Return contenders as servers, which load by themselves what is prepared."""
    return [ServedTool(**vars(each), kind=kind, batches=batches) for each in contenders]


class Workload(NamedTuple):
    """The requests of a comparison, and its tools."""

    model: str
    requests: str
    """Descriptions of the model and the requests."""
    checkpoint: Path
    tools: Sequence[ServedTool]
    """Tools, Dragoman's first; failures of missing tools are reported."""
    bodies: Sequence[dict[str, Any]]
    """JSON of requests, sent cyclically."""
    first_rate: float


class Point(NamedTuple):
    """The latencies of requests in seconds, at rates at which they are sent and served."""

    rate: float
    served: float
    p50: float
    p95: float
    p99: float
    failed: int
    """Requests without an answer or with a status other than 200."""


def measure_goodput(
    run: Run, workload: Workload, *, cores: int, seconds: float
) -> tuple[list[Row], list[Failure]]:
    """Measure all tools in all arrangements, each rate for some seconds; failures are reported.

    Returns:
        rows of a tool in an arrangement: the point `alone` of requests sent one by one, and those
        by rate; `memory_mb` of the process at the end; and the highest rates at which p95 was at
        most `SLOWER` times that of `alone` (`own`), and of `fastest` (`common`), the lowest p95
        without load of the tools in fp32, or of all others
    """
    unloaded: list[tuple[ServedTool, list[str], Arrangement, Point]] = []
    failures: list[Failure] = []
    for number, tool in enumerate(workload.tools):
        try:
            run.progress(f"preparing {tool.name}")
            prepared = prepare(tool, workload.checkpoint, run.directory / str(number))
            for arrangement in tool.arrangements(cores):
                run.progress(f"{tool.name}: {arrangement}, without load")
                command = tool.command(prepared, arrangement)
                with running(command) as (url, _):
                    bodies = [*islice(cycle(workload.bodies), UNLOADED)]
                    answers = call_in(HERE, send_all, url, bodies)
                seconds_of_one = float(np.mean([answer.seconds for answer in answers]))
                point = point_of(answers, 1 / seconds_of_one)
                if point.failed:
                    raise ProcessError(f"{point.failed} of {UNLOADED} requests failed")
                unloaded.append((tool, command, arrangement, point))
        except ProcessError as error:
            failures.append(Failure(tool.name, str(error)))
    found: list[Row] = []
    for tool, command, arrangement, alone in unloaded:
        fastest = min(p.p95 for other, _, _, p in unloaded if other.fp32 == tool.fp32)
        name, known = f"{tool.name}: {arrangement}", dict[float, Point]()
        try:
            with running(command) as (url, pid):
                at = partial(_point_at, seconds, workload.bodies, url, run, name)
                for latency in (fastest, alone.p95):
                    search(at, latency, known, workload.first_rate)
                memory = memory_mb(pid)
        except ProcessError as error:
            failures.append(Failure(name, str(error)))
            continue
        points = [known[rate] for rate in sorted(known)]
        found.append(
            {
                "tool": tool.name,
                "arrangement": arrangement,
                "alone": alone._asdict(),
                "points": [point._asdict() for point in points],
                "memory_mb": memory,
                "own": highest(points, alone.p95),
                "common": highest(points, fastest),
                "fastest": fastest,
            }
        )
    return found, failures


def _point_at(
    seconds: float, bodies: Sequence[dict[str, Any]], url: str, run: Run, name: str, rate: float
) -> Point:
    run.progress(f"{name}, {rate:.1f} requests a second")
    count = max(FEWEST, round(rate * seconds))
    arrivals = poisson_arrivals(count, rate, SEED)
    return point_of(call_in(HERE, send_all, url, [*islice(cycle(bodies), count)], arrivals), rate)


def search(
    at: Callable[[float], Point], unloaded: float, known: dict[float, Point], first_rate: float
) -> None:
    """Double the rate until requests are late, then bisect; new points are added to `known`."""

    def good_at(rate: float) -> bool:
        if rate not in known:
            known[rate] = at(rate)
        return in_time(known[rate], unloaded)

    good, bad = 0.0, first_rate
    while good_at(bad):
        good, bad = bad, bad * 2
    for _ in range(REFINEMENTS):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if good_at(middle) else (good, middle)


def highest(points: Sequence[Point], unloaded: float) -> float:
    """Return the highest rate served in time."""
    return max((point.rate for point in points if in_time(point, unloaded)), default=0.0)


def in_time(point: Point, unloaded: float) -> bool:
    """Return whether requests were served in time, given the seconds of one without load."""
    return not point.failed and point.p95 <= SLOWER * unloaded


def point_of(answers: Sequence[Answer], rate: float) -> Point:
    """Return percentiles of answers, without the first ones, sent to an idle server."""
    counted = answers[int(len(answers) * WARM_UP) :]
    seconds = np.array([answer.seconds for answer in counted])
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99]).round(5).tolist()
    failed = sum(answer.status != 200 for answer in answers)
    span = float((np.arange(len(counted)) / rate + seconds).max())
    return Point(round(rate, 3), round(len(counted) / span, 3), p50, p95, p99, failed)


def standings(found: Sequence[Row], tools: Sequence[ServedTool]) -> list[Row]:
    """Compare the measured tools with their best peers.

    Returns:
        rows of a tool: its rates `own` against all peers, `own_in_fp32` against peers in fp32, None
        for other tools, and its rates `common` against peers in fp32, or against all others; each
        with the best arrangement, the best peer, and the ratio of their rates
    """

    def best(tool: ServedTool, rate: str) -> Row:
        return max((row for row in found if row["tool"] == tool.name), key=lambda row: row[rate])

    def goodput(tool: ServedTool, peers: Sequence[ServedTool], rate: str) -> Row:
        own = best(tool, rate)
        rates = {peer.name: best(peer, rate)[rate] for peer in peers}
        name = max(rates, key=rates.__getitem__, default=None)
        return {
            "arrangement": own["arrangement"],
            "rate": own[rate],
            "best_peer": name,
            "ratio": round(own[rate] / rates[name], 3) if name and rates[name] else None,
        }

    measured = {row["tool"] for row in found}
    working = [tool for tool in tools if tool.name in measured]
    peers = [tool for tool in working if tool.peer]
    return [
        {
            "tool": tool.name,
            "own": goodput(tool, peers, "own"),
            "own_in_fp32": goodput(tool, alike, "own") if tool.fp32 else None,
            "common": goodput(tool, alike, "common"),
        }
        for tool in working
        for alike in [[peer for peer in peers if peer.fp32 == tool.fp32]]
    ]
