"""Contenders take turns at the same inputs; a figure is the median over rounds, with its range."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .contenders import CTRANSLATE2, REFERENCE, Contender
from .workers import ContenderError, Worker, prepare

SETTLE_SECONDS = 0.3
"""Between turns: some thread pools go on spinning for a while after their work."""


@dataclass(frozen=True)
class Measurement:
    """Of one contender at one batch size.

    Attributes:
        ms_per_step: a whole call over the number of new tokens: median, lowest, highest
        ratio: the median of the best CTranslate2 mode at this batch size over this one's: above 1
            is faster than that mode; None where none was measured
        best_ctranslate2: which mode that is
        identical: sequences equal to the reference's in fp32, of those in the batch
    """

    contender: str
    batch_size: int
    ms_per_step: tuple[float, float, float]
    tokens_per_second: float
    ratio: float | None
    best_ctranslate2: str | None
    identical: int


@dataclass(frozen=True)
class Footprint:
    """Of one contender.

    Attributes:
        load_seconds: from a bare interpreter, the import of libraries included
        peak_memory_mb: the most that its process held, of all batch sizes
        disk_mb: all files of what it loads
    """

    contender: str
    load_seconds: float
    peak_memory_mb: float
    disk_mb: float


@dataclass(frozen=True)
class Failure:
    contender: str
    reason: str


@dataclass
class Results:
    measurements: list[Measurement] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """What each contender has to do.

    Attributes:
        tokens: the range that source tokens are drawn from, the same for the same batch size
    """

    batch_sizes: tuple[int, ...]
    source_length: int
    new_tokens: int
    tokens: tuple[int, int]
    threads: int
    rounds: int

    def sources(self, batch_size: int) -> list[list[int]]:
        generator = np.random.default_rng(batch_size)
        sources: list[list[int]] = generator.integers(
            *self.tokens, (batch_size, self.source_length)
        ).tolist()
        return sources


def measure(
    contenders: Sequence[Contender],
    chosen: set[str],
    work: Work,
    *,
    checkpoint: Path,
    directory: Path,
    progress: Callable[[str], None] = lambda stage: None,
) -> Results:
    """Measure the chosen ones among the contenders, and let the reference say what is right.

    One that fails at anything is left out of all figures and reported with the reason.

    Args:
        directory: where the contenders' own forms of the checkpoint go
        progress: called with each stage as it begins

    Raises:
        ContenderError: the reference failed.
    """
    failures: list[Failure] = []
    workers: list[Worker] = []
    try:
        for number, contender in enumerate(contenders):
            if contender.name not in chosen | {REFERENCE}:
                continue
            progress(f"preparing {contender.name}")
            try:
                prepared = prepare(contender, checkpoint, directory / str(number))
                workers.append(Worker(contender, prepared, work.threads))
            except ContenderError as error:
                _note(contender.name, error, failures)
        turns = _Turns(work, workers, chosen, failures, progress)
        footprints = turns.take()
    finally:
        for worker in workers:
            worker.kill()
    failed = {failure.contender for failure in failures}
    measurements = [
        measurement
        for size in work.batch_sizes
        for measurement in _summaries(
            {name: s for name, s in turns.seconds[size].items() if name not in failed},
            turns.outputs[size],
            size,
            work.new_tokens,
        )
    ]
    return Results(measurements, footprints, failures)


class _Turns:
    def __init__(
        self,
        work: Work,
        workers: list[Worker],
        chosen: set[str],
        failures: list[Failure],
        progress: Callable[[str], None],
    ) -> None:
        self.work = work
        self.running = list(workers)
        self.chosen = chosen
        self.failures = failures
        self.progress = progress
        self.seconds: dict[int, dict[str, list[float]]] = {}
        self.outputs: dict[int, dict[str, list[list[int]]]] = {}

    def take(self) -> list[Footprint]:
        for size in self.work.batch_sizes:
            sources = self.work.sources(size)
            self.seconds[size] = {w.name: [] for w in self.running if w.name in self.chosen}
            self.outputs[size] = {}
            # One round before is not counted.
            for number in range(self.work.rounds + 1):
                self.progress(f"batch {size}, round {number} of {self.work.rounds}")
                for worker in list(self.running):
                    if number == 0 or worker.name in self.chosen:
                        self._take_one(worker, size, sources, counted=number > 0)
        return [
            footprint
            for worker in list(self.running)
            if (footprint := self._close(worker)) and worker.name in self.chosen
        ]

    def _take_one(
        self, worker: Worker, size: int, sources: list[list[int]], *, counted: bool
    ) -> None:
        time.sleep(SETTLE_SECONDS)
        try:
            tokens, taken = worker.generate(sources, self.work.new_tokens)
        except ContenderError as error:
            self._fail(worker, error)
            return
        self.outputs[size][worker.name] = tokens
        if counted:
            self.seconds[size][worker.name].append(taken)

    def _close(self, worker: Worker) -> Footprint | None:
        try:
            peak = worker.close()
        except ContenderError as error:
            self._fail(worker, error)
            return None
        return Footprint(
            worker.name, round(worker.load_seconds, 3), round(peak, 1), round(worker.disk_mb, 1)
        )

    def _fail(self, worker: Worker, error: ContenderError) -> None:
        self.running.remove(worker)
        _note(worker.name, error, self.failures)


def _note(name: str, error: ContenderError, failures: list[Failure]) -> None:
    """Keep the failure; without the reference nothing can be said of the others."""
    if name == REFERENCE:
        raise ContenderError(f"{name}: {error}") from error
    failures.append(Failure(name, str(error)))


def _summaries(
    seconds: dict[str, list[float]],
    outputs: dict[str, list[list[int]]],
    batch_size: int,
    new_tokens: int,
) -> list[Measurement]:
    medians = {name: float(np.median(taken)) for name, taken in seconds.items()}
    modes = [name for name in medians if name.startswith(CTRANSLATE2)]
    best = min(modes, key=medians.__getitem__, default=None)
    return [
        Measurement(
            contender=name,
            batch_size=batch_size,
            ms_per_step=_ms_per_step(seconds[name], new_tokens),
            tokens_per_second=round(batch_size * new_tokens / median, 1),
            ratio=None if best is None else round(medians[best] / median, 3),
            best_ctranslate2=best,
            identical=sum(a == b for a, b in zip(outputs[REFERENCE], outputs[name], strict=True)),
        )
        for name, median in medians.items()
    ]


def _ms_per_step(seconds: list[float], new_tokens: int) -> tuple[float, float, float]:
    median, lowest, highest = (
        round(float(f(seconds)) / new_tokens * 1e3, 3) for f in (np.median, np.min, np.max)
    )
    return median, lowest, highest
