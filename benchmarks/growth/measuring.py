"""Contenders take turns at every point of a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..harness import Entrant, Failure, Spread, spread, take_turns
from ..text.contenders import TextContender
from ..text.measuring import check_lengths
from .workload import Point, Workload


@dataclass(frozen=True)
class Measurement:
    """One contender at one point.

    Attributes:
        peer: it is another tool, which Dragoman is compared with
        batch_size: sources
        source_length: tokens of each
        ms_per_step: wall-clock time of a call, the encoder included, over the number of new tokens
        tokens_per_second: new tokens of all sources over the median time of a call
    """

    contender: str
    peer: bool
    batch_size: int
    source_length: int
    ms_per_step: Spread
    tokens_per_second: float


@dataclass(frozen=True)
class Growth:
    """Of every contender in turn, its points in order. One that failed at any point is in
    `failures` alone.

    Attributes:
        by_batch: as batches grow
        by_source: as sources grow longer
    """

    by_batch: list[Measurement]
    by_source: list[Measurement]
    failures: list[Failure]


def measure(
    contenders: Sequence[TextContender],
    workload: Workload,
    *,
    threads: int,
    rounds: int,
    turn_seconds: float,
    checkpoint: Path,
    directory: Path,
    progress: Callable[[str], None] = lambda stage: None,
) -> Growth:
    """Measure the contenders; of those that fail, only the reason is reported.

    Args:
        rounds: counted ones, after one that is not
        turn_seconds: a call that takes less is repeated, see `Worker.perform`
        checkpoint: of a text model
        directory: an existing one, for what contenders prepare
        progress: called with a description of each stage as it begins
    """
    results = take_turns(
        contenders,
        {str(point): batch for point, batch in workload.batches().items()},
        checkpoint=checkpoint,
        directory=directory,
        threads=[threads],
        rounds=rounds,
        turn_seconds=turn_seconds,
        check=check_lengths,
        progress=progress,
    )

    failed = {failure.contender for failure in results.failures}
    working = [contender for contender in contenders if contender.name not in failed]

    def series(points: Sequence[Point]) -> list[Measurement]:
        return [
            _measurement(contender, point, turns.seconds, workload.new_tokens)
            for contender in working
            for point in points
            for turns in [results.turns[str(point)][Entrant(contender.name, threads)]]
        ]

    return Growth(series(workload.by_batch), series(workload.by_source), results.failures)


def _measurement(
    contender: TextContender, point: Point, seconds: Sequence[float], new_tokens: int
) -> Measurement:
    return Measurement(
        contender.name,
        contender.peer,
        *point,
        spread(seconds, 1e3 / new_tokens),
        round(point.batch_size * new_tokens / float(np.median(seconds)), 1),
    )
