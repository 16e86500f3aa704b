"""Latency, throughput and correctness of contenders at encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..harness import (
    ContenderError,
    Entrant,
    Failure,
    Footprint,
    Spread,
    Turns,
    fastest,
    spread,
    take_turns,
)
from .contenders import REFERENCE, EncodingContender, Precision, Vectors
from .workload import Calls

ALIKE = 0.9
"""The lowest mean cosine with the reference that a contender may have in any precision."""
SAME = 0.999
"""The lowest cosine of a text in fp32."""


@dataclass(frozen=True)
class Measurement:
    """One contender with one number of threads at texts of one length, in batches of one size.

    Attributes:
        length: tokens of every text
        ms_per_call: of one batch, from texts to vectors
        best_fp32_peer: the fastest of other tools that compute in fp32, with as many threads or
            fewer; None if none was measured
        fp32_ratio: its median time over this one's: above 1, this contender is faster
        best_reduced_peer, reduced_ratio: the same among those in any lower precision
        cosine, lowest_cosine: of the angle between its vectors and the reference's, over all texts
    """

    contender: str
    precision: Precision
    threads: int
    length: int
    batch_size: int
    ms_per_call: Spread
    texts_per_second: float
    best_fp32_peer: str | None
    fp32_ratio: float | None
    best_reduced_peer: str | None
    reduced_ratio: float | None
    cosine: float
    lowest_cosine: float


@dataclass(frozen=True)
class Figures:
    """A contender that failed at anything is in `failures` alone."""

    measurements: list[Measurement]
    footprints: list[Footprint]
    failures: list[Failure]


def measure(
    contenders: Sequence[EncodingContender],
    selected: set[str],
    items: Sequence[Calls],
    *,
    checkpoint: Path,
    directory: Path,
    threads: Sequence[int],
    rounds: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> Figures:
    """Measure the selected contenders. The reference encodes everything first, and ends: the others
    are compared with its vectors before they are timed.

    Args:
        contenders: the reference among them
        selected: names
        checkpoint: a directory of sentence-transformers
        directory: an existing one, for what contenders prepare
        progress: called with a description of each stage as it begins

    Raises:
        ContenderError: the reference failed.
    """
    by_name = {contender.name: contender for contender in contenders}
    work = {str(item): item for item in items}
    judge = take_turns(
        [by_name[REFERENCE]],
        work,
        checkpoint=checkpoint,
        directory=directory,
        threads=[max(threads)],
        rounds=0,
        progress=progress,
    )
    expected = {name: next(iter(turns.values())).outcome for name, turns in judge.turns.items()}
    results = take_turns(
        [contender for contender in contenders if contender.name in selected],
        work,
        checkpoint=checkpoint,
        directory=directory,
        threads=threads,
        rounds=rounds,
        check=lambda item, found: check_vectors(found, expected[str(item)]),
        progress=progress,
    )
    measurements = [
        measurement
        for name, item in work.items()
        for measurement in measurements_of(results.turns[name], by_name, item, expected[name])
    ]
    return without_wrong(Figures(measurements, results.footprints, results.failures))


def check_vectors(found: Vectors, expected: Vectors) -> None:
    """
    Raises:
        ContenderError: they have another shape, or point elsewhere.
    """
    if found.shape != expected.shape:
        raise ContenderError(f"expected vectors of shape {expected.shape}, found {found.shape}")
    mean = float(cosines(found, expected).mean())
    if not mean >= ALIKE:
        raise ContenderError(
            f"expected vectors with a mean cosine of at least {ALIKE}, found {mean:.3f}"
        )


def cosines(found: Vectors, expected: Vectors) -> Vectors:
    """Of the angles between rows."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    of_rows: Vectors = (found * expected).sum(1) / lengths
    return of_rows


def measurements_of(
    turns: Mapping[Entrant, Turns[Vectors]],
    contenders: Mapping[str, EncodingContender],
    item: Calls,
    expected: Vectors,
) -> list[Measurement]:
    """The figures of one work item, from every contender's turns at it.

    Args:
        contenders: by name
    """
    medians = {entrant: float(np.median(own.seconds)) for entrant, own in turns.items()}

    def best_peer(threads: int, *, fp32: bool) -> Entrant | None:
        return fastest(
            {
                entrant: median
                for entrant, median in medians.items()
                for contender in [contenders[entrant.contender]]
                if contender.peer and entrant.threads <= threads
                if (contender.precision == "fp32") == fp32
            }
        )

    measurements = []
    for entrant, own in turns.items():
        fp32 = best_peer(entrant.threads, fp32=True)
        reduced = best_peer(entrant.threads, fp32=False)
        of_texts = cosines(own.outcome, expected)
        measurements.append(
            Measurement(
                contender=entrant.contender,
                precision=contenders[entrant.contender].precision,
                threads=entrant.threads,
                length=item.length,
                batch_size=item.batch_size,
                ms_per_call=spread(own.seconds, 1e3 / len(item.texts)),
                texts_per_second=round(len(expected) / medians[entrant], 1),
                best_fp32_peer=str(fp32) if fp32 else None,
                fp32_ratio=round(medians[fp32] / medians[entrant], 3) if fp32 else None,
                best_reduced_peer=str(reduced) if reduced else None,
                reduced_ratio=round(medians[reduced] / medians[entrant], 3) if reduced else None,
                cosine=round(float(of_texts.mean()), 6),
                lowest_cosine=round(float(of_texts.min()), 6),
            )
        )
    return measurements


def without_wrong(figures: Figures) -> Figures:
    """Those in fp32 whose vectors are not the reference's become failures."""
    lowest: dict[str, float] = {}
    for m in figures.measurements:
        if m.precision == "fp32":
            lowest[m.contender] = min(m.lowest_cosine, lowest.get(m.contender, 1.0))
    wrong = {name: cosine for name, cosine in lowest.items() if cosine < SAME}
    return replace(
        figures,
        measurements=[m for m in figures.measurements if m.contender not in wrong],
        footprints=[f for f in figures.footprints if f.contender not in wrong],
        failures=[
            *figures.failures,
            *(
                Failure(name, f"expected cosines of {SAME} at least in fp32, found {cosine}")
                for name, cosine in wrong.items()
            ),
        ],
    )
