"""First every tool tries its arrangements, then the best of each take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..harness import ContenderError, Failure, Interpreter, Spread, Turn, Worker, prepare, spread
from ..peers.interface import Rows
from .contenders import QueueTool
from .work import Arrangement, Share, deal


@dataclass(frozen=True)
class Trial:
    """An arrangement that was tried.

    Attributes:
        tokens_per_second: new tokens, end tokens included, over the time until the last worker is
            done
    """

    arrangement: Arrangement
    tokens_per_second: float


@dataclass(frozen=True)
class Throughput:
    """A tool in its best arrangement.

    Attributes:
        tokens_per_second: over the rounds
        tokens: new ones of all sentences, which differ from tool to tool as roundings do
        best_peer, ratio: the best of another tool, and this one's median over its; None if there is
            none
        best_fp32_peer, fp32_ratio: the same among those that compute in fp32; None of others
        memory_mb: the most that all workers together have held, in MB of 10^6 bytes
    """

    tool: str
    arrangement: Arrangement
    tokens_per_second: Spread
    tokens: int
    best_peer: str | None
    ratio: float | None
    best_fp32_peer: str | None
    fp32_ratio: float | None
    memory_mb: float
    trials: list[Trial]


@dataclass
class _Team:
    """The workers of a tool in an arrangement."""

    tool: QueueTool
    arrangement: Arrangement
    workers: list[Worker[Share, Rows]]

    def work_off(self, sources: Sequence[list[int]]) -> tuple[int, float]:
        """All sources, each worker its share: tokens, and seconds until the last is done."""
        shares = deal(sources, self.arrangement)
        with ThreadPoolExecutor(len(self.workers)) as pool:
            started = time.perf_counter()
            turns = list(
                pool.map(lambda worker, share: worker.perform(share), self.workers, shares)
            )
            seconds = time.perf_counter() - started
        for share, turn in zip(shares, turns, strict=True):
            if len(turn.outcome) != len(share.sources):
                raise ContenderError(
                    f"decoding: expected {len(share.sources)} rows, found {len(turn.outcome)}"
                )
        rows = [row for turn in turns for row in turn.outcome]
        longest = shares[0].max_new_tokens
        return sum(min(len(row) + 1, longest) for row in rows), seconds

    def close(self) -> float:
        return sum(worker.close() for worker in self.workers)

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()


def _perform(worker: Worker[Share, Rows], share: Share) -> Turn[Rows]:
    return worker.perform(share)


def measure(
    tools: Sequence[QueueTool],
    sources: Sequence[list[int]],
    arrangements: Sequence[Arrangement],
    *,
    rounds: int,
    checkpoint: Path,
    directory: Path,
    progress: Callable[[str], None] = lambda stage: None,
) -> tuple[list[Throughput], list[Failure]]:
    """Measure the tools; of those that fail, only the reason is reported.

    Args:
        arrangements: each tool gets the one in which it was fastest when all were tried once
        rounds: counted ones, after one that is not
        checkpoint: of a model whose outputs end
        directory: an existing one, for what tools prepare
        progress: called with a description of each stage as it begins
    """
    failures: list[Failure] = []
    trials: dict[str, list[Trial]] = {}
    teams: list[_Team] = []
    folders: dict[Interpreter, Path] = {}
    with ExitStack() as stack:
        for number, tool in enumerate(tools):
            folder = folders.setdefault(tool.interpreter, directory / f"by-{len(folders)}")
            folder.mkdir(exist_ok=True)
            try:
                progress(f"preparing {tool.name}")
                prepared = prepare(tool, checkpoint, folder / str(number))
                tried = _try_all(tool, prepared, sources, arrangements, progress)
                team = _assemble(tool, prepared, _best(tried).arrangement)
            except ContenderError as error:
                failures.append(Failure(tool.name, str(error)))
                continue
            stack.callback(team.kill)
            teams.append(team)
            trials[tool.name] = tried
        results = _take_turns(teams, sources, rounds, failures, progress)
    working = [tool for tool in tools if tool.name in results]
    return [figures_of(tool, results, trials[tool.name], working) for tool in working], failures


class Result(NamedTuple):
    """Of a tool in all rounds.

    Attributes:
        speeds: tokens a second of each counted round
        tokens, memory_mb: see `Throughput`
    """

    speeds: list[float]
    tokens: int
    memory_mb: float


def _take_turns(
    teams: Sequence[_Team],
    sources: Sequence[list[int]],
    rounds: int,
    failures: list[Failure],
    progress: Callable[[str], None],
) -> dict[str, Result]:
    """By name of the tool. One that fails takes no further turns."""
    turns: dict[str, list[tuple[int, float]]] = {team.tool.name: [] for team in teams}
    memory: dict[str, float] = {}
    present = list(teams)
    for number in range(rounds + 2):
        for team in list(present):
            name = team.tool.name
            progress(f"round {number} of {rounds}: {name}")
            try:
                if number <= rounds:
                    turns[name].append(team.work_off(sources))
                else:
                    memory[name] = team.close()
            except ContenderError as error:
                failures.append(Failure(name, str(error)))
                present.remove(team)
    return {
        name: Result([tokens / s for tokens, s in turns[name][1:]], turns[name][-1][0], held)
        for name, held in memory.items()
    }


def _assemble(tool: QueueTool, directory: Path, arrangement: Arrangement) -> _Team:
    """
    Raises:
        ContenderError: a worker fails to load; the others are ended.
    """
    team = _Team(tool, arrangement, [])
    try:
        for _ in range(arrangement.workers):
            team.workers.append(Worker(tool, directory, arrangement.threads))
    except ContenderError:
        team.kill()
        raise
    return team


def _try_all(
    tool: QueueTool,
    directory: Path,
    sources: Sequence[list[int]],
    arrangements: Sequence[Arrangement],
    progress: Callable[[str], None],
) -> list[Trial]:
    """Each arrangement once, after a part of the work to warm up."""
    trials = []
    for workers, threads in dict.fromkeys((a.workers, a.threads) for a in arrangements):
        team = _assemble(tool, directory, Arrangement(workers, threads, 1))
        try:
            for arrangement in arrangements:
                if arrangement[:2] != (workers, threads):
                    continue
                progress(f"{tool.name}: {arrangement}")
                team.arrangement = arrangement
                team.work_off(sources[: 2 * workers])
                tokens, seconds = team.work_off(sources)
                trials.append(Trial(arrangement, round(tokens / seconds, 1)))
        finally:
            team.kill()
    return trials


def _best(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.tokens_per_second)


def figures_of(
    tool: QueueTool,
    results: Mapping[str, Result],
    trials: list[Trial],
    tools: Sequence[QueueTool],
) -> Throughput:
    """
    Args:
        trials: of this tool
        tools: all that have results
    """
    speeds, tokens, memory = results[tool.name]
    medians = {name: float(np.median(result.speeds)) for name, result in results.items()}

    def best(names: list[str]) -> tuple[str | None, float | None]:
        name = max(names, key=medians.__getitem__, default=None)
        return name, None if name is None else round(medians[tool.name] / medians[name], 3)

    peers = [other for other in tools if other.peer]
    exact = [other.name for other in peers if other.fp32] if tool.fp32 else []
    return Throughput(
        tool.name,
        _best(trials).arrangement,
        spread(speeds),
        tokens,
        *best([other.name for other in peers]),
        *best(exact),
        round(memory, 1),
        trials,
    )
