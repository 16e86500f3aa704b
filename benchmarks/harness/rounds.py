"""Contenders take turns at the same work items, round by round.

What else happens on the machine, and how its clock frequency drifts, then hits all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from .contender import Contender, ContenderError, Entrant, Outcome, Work
from .interpreter import Interpreter
from .worker import Turn, Worker, prepare

SETTLE_SECONDS = 0.3
"""Pause before every turn: some thread pools keep spinning for a while after their work."""


@dataclass(frozen=True)
class Footprint:
    """Memory, disk and loading time of one contender with one number of threads.

    Attributes:
        load_seconds: from a bare interpreter, the import of libraries included
        peak_memory_mb: the most that its process has held, over all work items
        disk_mb: all files of the directory that it loads
    """

    contender: str
    threads: int
    load_seconds: float
    peak_memory_mb: float
    disk_mb: float


@dataclass(frozen=True)
class Failure:
    contender: str
    reason: str


@dataclass(frozen=True)
class Turns(Generic[Outcome]):
    """The turns of one contender, with one number of threads, at one work item.

    Attributes:
        warm_up: the turn of the first round, which is not counted
        counted: one of each further round; none of a contender that is not timed
    """

    warm_up: Turn[Outcome]
    counted: list[Turn[Outcome]]

    @property
    def outcome(self) -> Outcome:
        """The latest."""
        return (self.counted or [self.warm_up])[-1].outcome

    @property
    def seconds(self) -> list[float]:
        """Of every counted round."""
        return [turn.seconds for turn in self.counted]


@dataclass(frozen=True)
class Results(Generic[Outcome]):
    """What all rounds gave. A contender that failed at anything, with any number of threads, is in
    `failures` alone.

    Attributes:
        turns: work item's name -> contender and threads -> turns, in the order of the arguments
        footprints: of the timed contenders
    """

    turns: dict[str, dict[Entrant, Turns[Outcome]]]
    footprints: list[Footprint]
    failures: list[Failure]


def take_turns(
    contenders: Iterable[Contender[Work, Outcome]],
    items: Mapping[str, Work],
    *,
    checkpoint: Path,
    directory: Path,
    threads: Sequence[int],
    rounds: int,
    turn_seconds: float = 0,
    check: Callable[[Work, Outcome], None] = lambda work, outcome: None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Results[Outcome]:
    """Prepare and load the contenders, then let them do each work item in interleaved rounds.

    A contender that fails at anything takes no further turns and is reported with the reason.

    Args:
        items: work items by name, done one after the other: all rounds of the first, then of the
            second
        checkpoint: the directory of the model, which every contender prepares from
        directory: an existing one, for what they prepare: contenders of one interpreter get paths
            beside each other, and may share files there
        threads: every contender takes part once with each number, prepared once; those that are not
            timed with the highest only
        rounds: counted ones; one more comes before them as a warm-up
        turn_seconds: see `Worker.perform`
        check: raises ContenderError if an outcome is not what the work item demands
        progress: called with a description of each stage as it begins

    Raises:
        ContenderError: a required contender failed.
    """
    run: _Run[Work, Outcome] = _Run(turn_seconds, check, progress)
    try:
        folders: dict[Interpreter, Path] = {}
        for number, contender in enumerate(contenders):
            folder = folders.setdefault(contender.interpreter, directory / f"by-{len(folders)}")
            folder.mkdir(exist_ok=True)
            run.start(contender, checkpoint, folder / str(number), threads)
        turns = {name: run.rounds(name, work, rounds) for name, work in items.items()}
        footprints = run.close()
    finally:
        run.kill()
    failed = {failure.contender for failure in run.failures}
    completed = {
        item: {
            entrant: Turns(t[0], t[1:])
            for entrant, t in taken.items()
            if entrant.contender not in failed
        }
        for item, taken in turns.items()
    }
    return Results(completed, [f for f in footprints if f.contender not in failed], run.failures)


class _Run(Generic[Work, Outcome]):
    """The workers of one run, and the failures so far."""

    def __init__(
        self,
        turn_seconds: float,
        check: Callable[[Work, Outcome], None],
        progress: Callable[[str], None],
    ) -> None:
        self.turn_seconds = turn_seconds
        self.check = check
        self.progress = progress
        self.workers: list[Worker[Work, Outcome]] = []
        self.failures: list[Failure] = []

    def start(
        self,
        contender: Contender[Work, Outcome],
        checkpoint: Path,
        directory: Path,
        threads: Sequence[int],
    ) -> None:
        self.progress(f"preparing {contender.name}")
        try:
            prepared = prepare(contender, checkpoint, directory)
            for number in threads if contender.timed else [max(threads)]:
                self.workers.append(Worker(contender, prepared, number))
        except ContenderError as error:
            self._drop(contender, error)

    def rounds(self, item: str, work: Work, rounds: int) -> dict[Entrant, list[Turn[Outcome]]]:
        """The turns at one work item by contender and threads, the warm-up first."""
        turns: dict[Entrant, list[Turn[Outcome]]] = {w.entrant: [] for w in self.workers}
        for number in range(rounds + 1):
            self.progress(f"{item}, round {number} of {rounds}")
            for worker in self._present():
                if number == 0 or worker.contender.timed:
                    time.sleep(SETTLE_SECONDS)
                    try:
                        turn = worker.perform(work, self.turn_seconds)
                        self.check(work, turn.outcome)
                    except ContenderError as error:
                        self._drop(worker.contender, error)
                    else:
                        turns[worker.entrant].append(turn)
        return turns

    def close(self) -> list[Footprint]:
        """End all workers and return the footprints of the timed ones."""
        footprints = []
        for worker in self._present():
            try:
                peak = worker.close()
            except ContenderError as error:
                self._drop(worker.contender, error)
                continue
            if worker.contender.timed:
                footprints.append(
                    Footprint(
                        *worker.entrant,
                        round(worker.load_seconds, 3),
                        round(peak, 1),
                        round(worker.disk_mb, 1),
                    )
                )
        return footprints

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()

    def _present(self) -> Iterator[Worker[Work, Outcome]]:
        """All workers in turn, without those that are dropped meanwhile."""
        for worker in list(self.workers):
            if worker in self.workers:
                yield worker

    def _drop(self, contender: Contender[Work, Outcome], error: ContenderError) -> None:
        """Note the failure and end all workers of the contender."""
        if contender.required:
            raise ContenderError(f"{contender.name}: {error}") from error
        for worker in [w for w in self.workers if w.contender is contender]:
            worker.kill()
            self.workers.remove(worker)
        self.failures.append(Failure(contender.name, str(error)))
