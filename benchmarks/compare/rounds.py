"""Runs contenders on the same work in interleaved rounds, each in its own process.

Other load and drifting clock frequencies then affect all contenders alike. Thread pools do not
interfere, and memory and loading time can be attributed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..processes import HERE, Child, Interpreter, ProcessError, call_in, reason
from ..processes.memory import peak_memory_mb

Work = TypeVar("Work")
Outcome = TypeVar("Outcome")

Prepare = Callable[[Path, Path], Path]
"""Converts a checkpoint to a path that does not exist yet; returns the directory to load."""
Perform = Callable[[Work], Outcome]
"""Does one work item. A call is what is timed."""

Spread = tuple[float, float, float]
"""Median, lowest and highest."""

SETTLE_SECONDS = 0.3
"""Pause before every turn: some thread pools keep spinning for a while after their work."""


@dataclass(frozen=True)
class Contender(Generic[Work, Outcome]):
    """A tool in one configuration.

    Its functions run in other processes, so they must be picklable: module-level functions, or
    `functools.partial` of them.
    """

    name: str
    prepare: Prepare
    load: Callable[[Path, int], Perform[Work, Outcome]]
    """(directory, number of threads) -> the loaded model, ready to work."""
    precision: str = "fp32"
    """Precision of computation; outputs in "fp32" should equal the reference's."""
    peer: bool = False
    """Whether it is another tool, which Dragoman is compared with."""
    needs_torch: bool = False
    """Whether it computes with PyTorch. For other contenders `import torch` fails, since some tools
    load torch merely because it is installed."""
    required: bool = False
    """Whether its failure ends the run, because others are compared with its outcomes."""
    timed: bool = True
    """Whether it runs in counted rounds; otherwise only in the warm-up, for its outcome."""
    interpreter: Interpreter = HERE

    @property
    def fp32(self) -> bool:
        """Whether the contender computes in fp32."""
        return self.precision == "fp32"


class Entrant(NamedTuple):
    """A contender with one number of threads."""

    contender: str
    threads: int

    def __str__(self) -> str:
        return f"{self.contender}, {count(self.threads, 'thread')}"


@dataclass(frozen=True)
class Footprint:
    """Memory, disk and loading time of one contender with one number of threads."""

    contender: str
    threads: int
    load_seconds: float
    """Loading time, including imports."""
    peak_memory_mb: float
    """Peak memory of the process over all work items, in MB of 10^6 bytes."""
    disk_mb: float


@dataclass(frozen=True)
class Failure:
    """A failed measurement and its reason."""

    contender: str
    reason: str


@dataclass(frozen=True)
class Turn(Generic[Outcome]):
    """One execution of a work item, repeated if it is short."""

    outcome: Outcome
    seconds: float
    """Wall-clock time of the call; of several calls, the median without the first one."""


@dataclass(frozen=True)
class Turns(Generic[Outcome]):
    """The turns of one contender with one number of threads at one work item."""

    warm_up: Turn[Outcome]
    counted: list[Turn[Outcome]]
    """Turns of the rounds after the first; empty if the contender is not timed."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the latest turn."""
        return (self.counted or [self.warm_up])[-1].outcome

    @property
    def seconds(self) -> list[float]:
        """The seconds of every counted round."""
        return [turn.seconds for turn in self.counted]

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return float(np.median(self.seconds))


@dataclass(frozen=True)
class Results(Generic[Outcome]):
    """The results of all rounds.

    A contender that failed once, with any number of threads, is only in `failures`.
    """

    turns: dict[str, dict[Entrant, Turns[Outcome]]]
    """Turns by work item, then by contender and threads, in the order of the arguments."""
    footprints: list[Footprint]
    failures: list[Failure]


class Interrupted(KeyboardInterrupt):
    """The user has interrupted the rounds, which `results` has up to the last complete item."""

    def __init__(self, results: Results[Any]) -> None:
        self.results = results


class Worker(Generic[Work, Outcome]):
    """A contender loaded in its own process; a ProcessError is its failure for any reason."""

    def __init__(self, contender: Contender[Work, Outcome], directory: Path, threads: int) -> None:
        self.contender = contender
        self.entrant = Entrant(contender.name, threads)
        self._child = Child(
            contender.interpreter, _serve, contender.load, directory, threads, contender.needs_torch
        )
        self._load_seconds: float = self._child.receive()
        self.pid = self._child.pid
        self._disk_mb = sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 1e6

    def perform(self, work: Work, turn_seconds: float = 0) -> Turn[Outcome]:
        """Execute a work item repeatedly until `turn_seconds` have passed.

        After a pause, a processor needs time to reach its clock frequency and fill its caches.
        """
        self._child.send((work, turn_seconds))
        return Turn(*self._child.receive())

    def close(self) -> Footprint:
        """End the process, and return its footprint."""
        self._child.send(())
        peak: float = self._child.receive()
        self._child.wait()
        sizes = round(self._load_seconds, 3), round(peak, 1), round(self._disk_mb, 1)
        return Footprint(*self.entrant, *sizes)

    def kill(self) -> None:
        """End the process at once; may be called again."""
        self._child.kill()


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
    start: Callable[[Any, Path, int], Worker[Work, Outcome]] = Worker,
) -> Results[Outcome]:
    """Prepare and load the contenders, then run each work item in interleaved rounds.

    A contender that fails takes no further turns and is reported with the reason.

    Args:
        items: work items by name; all rounds of an item precede the next item
        directory: existing directory for conversions; contenders of one interpreter share a folder
        threads: numbers of threads, with each of which every contender runs; untimed contenders
            use only the highest
        rounds: number of counted rounds, after one warm-up round
        check: raises ProcessError if an outcome is invalid for its work item

    Raises:
        ProcessError: a required contender failed.
        Interrupted: the user has interrupted the rounds after the first item.
    """
    workers: list[Worker[Work, Outcome]] = []
    failures: list[Failure] = []
    folders: dict[Interpreter, Path] = {}
    turns: dict[str, dict[Entrant, list[Turn[Outcome]]]] = {}
    footprints = []
    interrupted = False

    @contextmanager
    def dropping(contender: Contender[Work, Outcome]) -> Iterator[None]:
        """Record a failure within the context, and end all workers of the contender."""
        try:
            yield
        except ProcessError as error:
            if contender.required:
                raise ProcessError(f"{contender.name}: {error}") from error
            for worker in [w for w in workers if w.contender is contender]:
                worker.kill()
                workers.remove(worker)
            failures.append(Failure(contender.name, str(error)))

    def present() -> Iterator[Worker[Work, Outcome]]:
        """Yield all workers in turn, skipping workers dropped meanwhile."""
        yield from (worker for worker in list(workers) if worker in workers)

    try:
        for index, contender in enumerate(contenders):
            progress(f"preparing {contender.name}")
            new = directory / f"by-{len(folders)}"
            folder = folders.setdefault(contender.interpreter, new)
            folder.mkdir(exist_ok=True)
            with dropping(contender):
                prepared = prepare(contender, checkpoint, folder / str(index))
                for number in threads if contender.timed else [max(threads)]:
                    workers.append(start(contender, prepared, number))
        for item, work in items.items():
            taken: dict[Entrant, list[Turn[Outcome]]] = {w.entrant: [] for w in workers}
            for number in range(rounds + 1):
                progress(f"{item}, round {number} of {rounds}")
                for worker in present():
                    if number == 0 or worker.contender.timed:
                        time.sleep(SETTLE_SECONDS)
                        with dropping(worker.contender):
                            turn = worker.perform(work, turn_seconds)
                            check(work, turn.outcome)
                            taken[worker.entrant].append(turn)
            turns[item] = taken
        for worker in present():
            with dropping(worker.contender):
                footprint = worker.close()
                if worker.contender.timed:
                    footprints.append(footprint)
    except KeyboardInterrupt:
        if not turns:
            raise
        interrupted = True
    finally:
        for worker in workers:
            worker.kill()
    failed = {failure.contender for failure in failures}
    completed = {
        item: {e: Turns(t[0], t[1:]) for e, t in taken.items() if e.contender not in failed}
        for item, taken in turns.items()
    }
    results = Results(completed, [f for f in footprints if f.contender not in failed], failures)
    if interrupted:
        raise Interrupted(results)
    return results


def prepare(contender: Contender[Work, Outcome], checkpoint: Path, directory: Path) -> Path:
    """Call `Contender.prepare` in a process that ends afterwards."""
    try:
        return call_in(contender.interpreter, contender.prepare, checkpoint, directory)
    except ProcessError as error:
        raise ProcessError(f"preparing: {error}") from error


def timed(function: Callable[..., Outcome], *arguments: Any) -> tuple[Outcome, float]:
    """Call a function; return what it returns, and the seconds that it took."""
    started = time.perf_counter()
    outcome = function(*arguments)
    return outcome, time.perf_counter() - started


def unchanged(checkpoint: Path, directory: Path) -> Path:
    """Return the checkpoint: the `prepare` of a contender that loads it as it is."""
    return checkpoint


def spread(values: Sequence[float], scale: float = 1.0) -> Spread:
    """Return median, lowest and highest of the values times `scale`, rounded to 3 decimals."""
    found = (round(float(f(values)) * scale, 3) for f in (np.median, np.min, np.max))
    median, lowest, highest = found
    return median, lowest, highest


def paired(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Return the spread of one's values over another's of the same rounds, free of their drift."""
    return spread([value / other for value, other in zip(values, others, strict=True)])


def against(seconds: float, peers: Mapping[Any, float], kind: str = "") -> dict[str, Any]:
    """Compare a time with that of the fastest of the peers, whose seconds are given by name.

    Returns:
        `best_peer`, and `ratio`: its seconds over the given ones, above 1 where the peer is slower;
        None without peers; or `best_KIND_peer` and `KIND_ratio`
    """
    kind = f"{kind}_" if kind else ""
    if not peers:
        return {f"best_{kind}peer": None, f"{kind}ratio": None}
    best = min(peers, key=peers.__getitem__)
    return {f"best_{kind}peer": str(best), f"{kind}ratio": round(peers[best] / seconds, 3)}


def count(number: int, what: str) -> str:
    """Return a number with its noun, such as "2 threads"."""
    return f"{number} {what}{'s' if number > 1 else ''}"


def _serve(
    connection: Connection,
    load: Callable[[Path, int], Perform[Any, Any]],
    directory: Path,
    threads: int,
    needs_torch: bool,
) -> None:
    """Run the worker's process; requests are arguments of `perform`, and an empty one ends it."""
    if not needs_torch:
        sys.modules["torch"] = None  # type: ignore[assignment] # see Contender.needs_torch
    stage = "loading"
    try:
        perform, load_seconds = timed(load, directory, threads)
        connection.send((True, load_seconds))
        stage = "working"
        while request := connection.recv():
            work, turn_seconds = request
            begun, seconds = time.perf_counter(), list[float]()
            while not seconds or time.perf_counter() - begun < turn_seconds:
                outcome, taken = timed(perform, work)
                seconds.append(taken)
            connection.send((True, (outcome, statistics.median(seconds[1:] or seconds))))
        connection.send((True, peak_memory_mb()))
    except EOFError:  # the parent has ended
        return
    except Exception as error:
        connection.send((False, f"{stage}: {reason(error)}"))
