"""Latency, throughput and correctness of contenders at a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..harness import (
    ContenderError,
    Failure,
    Footprint,
    Spread,
    Turns,
    fastest,
    spread,
    take_turns,
)
from ..peers.interface import Batch, Rows
from .contenders import CTRANSLATE2, REFERENCE, TextContender
from .workload import Workload


@dataclass(frozen=True)
class Measurement:
    """One contender at one batch size.

    Attributes:
        ms_per_step: wall-clock time of a call, the encoder included, over the number of new tokens
        tokens_per_second: new tokens of all rows over the median time of a call
        ratio: median time of the fastest CTranslate2 mode at this batch size over this contender's:
            above 1, this contender is faster; None if no mode was measured
        best_ctranslate2: the name of that mode
        identical: rows of the batch that equal the reference's in fp32
    """

    contender: str
    batch_size: int
    ms_per_step: Spread
    tokens_per_second: float
    ratio: float | None
    best_ctranslate2: str | None
    identical: int


@dataclass(frozen=True)
class Figures:
    """A contender that failed at anything is in `failures` alone."""

    measurements: list[Measurement]
    footprints: list[Footprint]
    failures: list[Failure]


def measure(
    contenders: Iterable[TextContender],
    selected: set[str],
    workload: Workload,
    *,
    checkpoint: Path,
    directory: Path,
    progress: Callable[[str], None] = lambda stage: None,
) -> Figures:
    """Measure the selected contenders. The reference takes part in the warm-up in any case: the
    others are compared with its tokens.

    Args:
        contenders: the reference among them
        selected: names
        checkpoint: a Marian checkpoint
        directory: an existing one, for what contenders prepare
        progress: called with a description of each stage as it begins

    Raises:
        ContenderError: the reference failed.
    """
    names = {size: f"batch {size}" for size in workload.batch_sizes}
    results = take_turns(
        [
            replace(contender, timed=contender.name in selected)
            for contender in contenders
            if contender.name in selected or contender.required
        ],
        {name: workload.batch(size) for size, name in names.items()},
        checkpoint=checkpoint,
        directory=directory,
        threads=workload.threads,
        rounds=workload.rounds,
        check=check_lengths,
        progress=progress,
    )
    measurements = [
        measurement
        for size, name in names.items()
        for measurement in measurements_of(results.turns[name], size, workload.new_tokens)
    ]
    return Figures(measurements, results.footprints, results.failures)


def check_lengths(batch: Batch, rows: Rows) -> None:
    """Raises ContenderError unless every source got exactly the new tokens of the batch."""
    lengths = {len(row) for row in rows}
    if len(rows) != len(batch.sources) or lengths != {batch.new_tokens}:
        raise ContenderError(
            f"decoding: expected {len(batch.sources)} rows of {batch.new_tokens} new tokens, "
            f"found {len(rows)} rows of {sorted(lengths)}"
        )


def measurements_of(
    turns: Mapping[str, Turns[Rows]], batch_size: int, new_tokens: int
) -> list[Measurement]:
    """The figures of one batch size, from every contender's turns at it."""
    expected = turns[REFERENCE].outcome
    timed = {name: t for name, t in turns.items() if t.counted}
    medians = {name: float(np.median(t.seconds)) for name, t in timed.items()}
    best = fastest(medians, CTRANSLATE2)
    return [
        Measurement(
            contender=name,
            batch_size=batch_size,
            ms_per_step=spread(timed[name].seconds, 1e3 / new_tokens),
            tokens_per_second=round(batch_size * new_tokens / median, 1),
            ratio=None if best is None else round(medians[best] / median, 3),
            best_ctranslate2=best,
            identical=sum(a == b for a, b in zip(expected, timed[name].outcome, strict=True)),
        )
        for name, median in medians.items()
    ]
