"""Latency, throughput and correctness of contenders at a workload."""

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
    paired,
    spread,
    take_turns,
)
from ..peers.interface import Batch, Rows
from .contenders import AS_MANY_ROWS, BEFORE, REFERENCE, TextContender
from .workload import Workload


@dataclass(frozen=True)
class Measurement:
    """One contender with one number of threads at one batch size.

    Attributes:
        fp32: it computes in fp32
        batch_size: sources
        ms_per_step: wall-clock time of a call, the encoder included, over the number of new tokens
        tokens_per_second: new tokens of all sources over the median time of a call
        best_peer: the fastest mode of another tool at this batch size, at its best number of
            threads; None if none was measured
        ratio: its median time over this one's: above 1, this contender is faster
        best_fp32_peer, fp32_ratio: the same among those that compute in fp32; None of others
        identical: sources whose tokens equal the reference's in fp32
        thread_ratio, fp32_thread_ratio: ratios as above, to the best peer with as many threads
    """

    contender: str
    threads: int
    fp32: bool
    batch_size: int
    ms_per_step: Spread
    tokens_per_second: float
    best_peer: str | None
    ratio: float | None
    best_fp32_peer: str | None
    fp32_ratio: float | None
    identical: int
    thread_ratio: float | None = None
    fp32_thread_ratio: float | None = None


@dataclass(frozen=True)
class Cost:
    """What one contender takes relative to another.

    Attributes:
        compared_with: the other contender
        of: "step": a step after the first, without the encoder; "call"
        ms, compared_ms: times of the contender and of the other
        ratio: the first over the second, round by round
    """

    contender: str
    compared_with: str
    threads: int
    batch_size: int
    of: str
    ms: Spread
    compared_ms: Spread
    ratio: Spread


@dataclass(frozen=True)
class Figures:
    """A contender that failed at anything is in `failures` alone."""

    measurements: list[Measurement]
    costs: list[Cost]
    footprints: list[Footprint]
    failures: list[Failure]


def measure(
    contenders: Sequence[TextContender],
    selected: set[str],
    workload: Workload,
    *,
    checkpoint: Path,
    directory: Path,
    progress: Callable[[str], None] = lambda stage: None,
) -> Figures:
    """Measure the selected contenders. The reference takes part in the warm-up in any case: the
    others are compared with its tokens.

    With beams, a batch of one new token is measured too: the difference is the steps alone.

    Args:
        contenders: the reference among them
        selected: names
        checkpoint: a Marian checkpoint
        directory: an existing one, for what contenders prepare
        progress: called with a description of each stage as it begins

    Raises:
        ContenderError: the reference failed.
    """
    batches = {_name(size): workload.batch(size) for size in workload.batch_sizes}
    if workload.num_beams > 1 and workload.new_tokens > 1:
        batches |= {
            _name(size, first=True): workload.batch(size)._replace(new_tokens=1)
            for size in workload.batch_sizes
        }
    results = take_turns(
        [
            replace(contender, timed=contender.timed and contender.name in selected)
            for contender in contenders
            if contender.name in selected or contender.required
        ],
        batches,
        checkpoint=checkpoint,
        directory=directory,
        threads=workload.threads,
        rounds=workload.rounds,
        turn_seconds=workload.turn_seconds,
        check=check_lengths,
        progress=progress,
    )
    measurements: list[Measurement] = []
    costs: list[Cost] = []
    by_name = {contender.name: contender for contender in contenders}
    for size in workload.batch_sizes:
        turns = results.turns[_name(size)]
        first = results.turns.get(_name(size, first=True), {})
        measurements += measurements_of(turns, by_name, size, workload.new_tokens)
        costs += costs_of(turns, first, size, workload.new_tokens)
    return Figures(measurements, costs, results.footprints, results.failures)


def _name(batch_size: int, *, first: bool = False) -> str:
    return f"batch {batch_size}{', first token' if first else ''}"


def check_lengths(batch: Batch, rows: Rows) -> None:
    """Raises ContenderError unless every source got exactly the new tokens of the batch."""
    lengths = {len(row) for row in rows}
    if len(rows) != len(batch.sources) or lengths != {batch.new_tokens}:
        raise ContenderError(
            f"decoding: expected {len(batch.sources)} rows of {batch.new_tokens} new tokens, "
            f"found {len(rows)} rows of {sorted(lengths)}"
        )


def measurements_of(
    turns: Mapping[Entrant, Turns[Rows]],
    contenders: Mapping[str, TextContender],
    batch_size: int,
    new_tokens: int,
) -> list[Measurement]:
    """The figures of one batch size, from every contender's turns at it.

    Args:
        contenders: by name
    """
    expected = next(t.outcome for entrant, t in turns.items() if entrant.contender == REFERENCE)
    timed = {
        entrant: t
        for entrant, t in turns.items()
        if t.counted and not entrant.contender.endswith(AS_MANY_ROWS)
    }
    medians = {entrant: float(np.median(t.seconds)) for entrant, t in timed.items()}
    peers = {entrant: m for entrant, m in medians.items() if contenders[entrant.contender].peer}
    in_fp32 = {entrant: m for entrant, m in peers.items() if contenders[entrant.contender].fp32}
    best, best_fp32 = fastest(peers), fastest(in_fp32)

    def ratio(peer: Entrant | None, seconds: float) -> float | None:
        return None if peer is None else round(medians[peer] / seconds, 3)

    def as_many_threads(peers: Mapping[Entrant, float], threads: int) -> Entrant | None:
        return fastest({entrant: m for entrant, m in peers.items() if entrant.threads == threads})

    measurements = []
    for entrant, seconds in medians.items():
        exact = contenders[entrant.contender].fp32
        best_exact = best_fp32 if exact else None
        measurements.append(
            Measurement(
                contender=entrant.contender,
                threads=entrant.threads,
                fp32=exact,
                batch_size=batch_size,
                ms_per_step=spread(timed[entrant].seconds, 1e3 / new_tokens),
                tokens_per_second=round(batch_size * new_tokens / seconds, 1),
                best_peer=str(best) if best else None,
                ratio=ratio(best, seconds),
                best_fp32_peer=str(best_exact) if best_exact else None,
                fp32_ratio=ratio(best_exact, seconds),
                thread_ratio=ratio(as_many_threads(peers, entrant.threads), seconds),
                fp32_thread_ratio=ratio(
                    as_many_threads(in_fp32, entrant.threads) if exact else None, seconds
                ),
                identical=sum(
                    a == b for a, b in zip(expected, timed[entrant].outcome, strict=True)
                ),
            )
        )
    return measurements


def costs_of(
    turns: Mapping[Entrant, Turns[Rows]],
    first: Mapping[Entrant, Turns[Rows]],
    batch_size: int,
    new_tokens: int,
) -> list[Cost]:
    """What a step of beams costs over a greedy step of as many rows, and a call of Dragoman over
    one of the version before.

    Args:
        first: the turns that generated one token only; none if that was not measured
    """
    calls = {entrant: t.seconds for entrant, t in turns.items() if t.counted}
    steps = {
        entrant: [
            (call - float(np.median(t.seconds))) / (new_tokens - 1) for call in calls[entrant]
        ]
        for entrant, t in first.items()
        if t.counted
    }
    return [
        Cost(
            contender=entrant.contender,
            compared_with=other.contender,
            threads=entrant.threads,
            batch_size=batch_size,
            of=of,
            ms=spread(seconds[entrant], 1e3),
            compared_ms=spread(seconds[other], 1e3),
            ratio=paired(seconds[entrant], seconds[other]),
        )
        for suffix, of, seconds in ((AS_MANY_ROWS, "step", steps), (BEFORE, "call", calls))
        for entrant in seconds
        for other in [entrant._replace(contender=f"{entrant.contender}{suffix}")]
        if other in seconds
    ]
