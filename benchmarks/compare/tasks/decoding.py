"""Measures latency, throughput and correctness of decoding a fixed number of new tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...peers.interface import Batch, Rows
from ...processes import ProcessError
from ..rounds import Entrant, Spread, Turns, against, paired, spread, take_turns
from ..task import Run
from .text_contenders import AS_MANY_ROWS, BEFORE, REFERENCE, TextContender

CALIBRATION_SOURCES = 128
SOURCE_LENGTHS = (5, 60)
"""Tokens of the shortest and the longest of sentences of unequal length."""
MEAN_OUTPUT, LONGEST_OUTPUT = 32, 128
"""Tokens of their outputs, which end by themselves."""


@dataclass(frozen=True)
class Workload:
    """The batches of random sources to decode, and the number of rounds.

    Attributes:
        batch_sizes: batch sizes in sources
        source_length: tokens of every source, or the minimum
        new_tokens: tokens that every row generates
        tokens: source tokens are drawn from range(*tokens)
        threads: numbers of threads, with each of which every contender runs
        rounds: number of counted rounds
        longest_source: maximum of random lengths; None: all sources have the same length
        num_beams: number of beams; 1: greedy
        turn_seconds: shorter calls are repeated, see `Worker.perform`
    """

    batch_sizes: tuple[int, ...]
    source_length: int
    new_tokens: int
    tokens: tuple[int, int]
    threads: tuple[int, ...]
    rounds: int
    longest_source: int | None = None
    num_beams: int = 1
    turn_seconds: float = 0

    def batch(self, size: int) -> Batch:
        """Return the batch of a size, the same at every call."""
        return Batch(self._sources(size, seed=size), self.new_tokens, self.num_beams)

    def calibration(self) -> list[list[int]]:
        """Return calibration sources of the same kind, which are in no batch."""
        return self._sources(CALIBRATION_SOURCES, seed=[CALIBRATION_SOURCES])

    def _sources(self, count: int, seed: int | list[int]) -> list[list[int]]:
        generator = np.random.default_rng(seed)
        longest = self.longest_source or self.source_length
        sources: list[list[int]] = generator.integers(*self.tokens, (count, longest)).tolist()
        if longest > self.source_length:
            lengths = generator.integers(self.source_length, longest + 1, count)
            sources = [source[:n] for source, n in zip(sources, lengths, strict=True)]
        return sources


@dataclass(frozen=True)
class Measurement:
    """The figures of one contender with one number of threads at one batch size.

    Attributes:
        fp32: whether the contender computes in fp32
        batch_size: number of sources
        ms_per_step: wall-clock time of a call, including the encoder, per new token
        tokens_per_second: new tokens of all sources over the median time of a call
        best_peer: fastest mode of another tool at this batch size, at its best number of threads;
            None: none was measured
        ratio: median time of the best peer over this contender's; above 1: this contender is faster
        best_fp32_peer, fp32_ratio: the same for peers in fp32; None unless this is in fp32
        identical: number of sources whose tokens equal the reference's
        thread_ratio, fp32_thread_ratio: ratios to the best peer with as many threads
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
    """The time of one contender relative to another.

    Attributes:
        compared_with: the other contender
        of: "step" (a step after the first, without the encoder) or "call"
        ms, compared_ms: times of the contender and of the other
        ratio: `ms` over `compared_ms`, round by round
    """

    contender: str
    compared_with: str
    threads: int
    batch_size: int
    of: str
    ms: Spread
    compared_ms: Spread
    ratio: Spread


def draw_sources(count: int, tokens: tuple[int, int], seed: int = 15) -> list[list[int]]:
    """Return random sources of uniformly distributed lengths, the same for the same arguments.

    Args:
        tokens: source tokens are drawn from range(*tokens)
    """
    generator = np.random.default_rng(seed)
    shortest, longest = SOURCE_LENGTHS
    lengths = generator.integers(shortest, longest + 1, count).tolist()
    return [generator.integers(*tokens, length).tolist() for length in lengths]


def measure_decoding(
    run: Run, contenders: Sequence[TextContender], workload: Workload, checkpoint: Path
) -> dict[str, Any]:
    """Measure contenders: `measurements`, `costs`, `footprints`, `failures`.

    The reference always runs in the warm-up, since others are compared with its tokens. With beams,
    a batch of one new token is also measured, to compute the time of the steps alone.

    Args:
        contenders: contenders, including the reference
        checkpoint: checkpoint of a model that never selects its end token

    Raises:
        ProcessError: the reference failed.
    """
    selected = run.selected(contender.name for contender in contenders)
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
        directory=run.directory,
        threads=workload.threads,
        rounds=workload.rounds,
        turn_seconds=workload.turn_seconds,
        check=check_lengths,
        progress=run.progress,
    )
    measurements: list[Measurement] = []
    costs: list[Cost] = []
    by_name = {contender.name: contender for contender in contenders}
    for size in workload.batch_sizes:
        turns = results.turns[_name(size)]
        first = results.turns.get(_name(size, first=True), {})
        measurements += measurements_of(turns, by_name, size, workload.new_tokens)
        costs += costs_of(turns, first, size, workload.new_tokens)
    return {
        "measurements": measurements,
        "costs": costs,
        "footprints": results.footprints,
        "failures": results.failures,
    }


def _name(batch_size: int, *, first: bool = False) -> str:
    return f"batch {batch_size}{', first token' if first else ''}"


def check_lengths(batch: Batch, rows: Rows) -> None:
    """Check that every source got exactly the new tokens of the batch.

    Raises:
        ProcessError: a length differs.
    """
    lengths = {len(row) for row in rows}
    if len(rows) != len(batch.sources) or lengths != {batch.new_tokens}:
        raise ProcessError(
            f"decoding: expected {len(batch.sources)} rows of {batch.new_tokens} new tokens, "
            f"found {len(rows)} rows of {sorted(lengths)}"
        )


def measurements_of(
    turns: Mapping[Entrant, Turns[Rows]],
    contenders: Mapping[str, TextContender],
    batch_size: int,
    new_tokens: int,
) -> list[Measurement]:
    """Return the figures of one batch size from the turns of all contenders.

    Args:
        contenders: contenders by name
    """
    expected = next(t.outcome for entrant, t in turns.items() if entrant.contender == REFERENCE)
    timed = {
        entrant: t
        for entrant, t in turns.items()
        if t.counted and not entrant.contender.endswith(AS_MANY_ROWS)
    }
    medians = {entrant: t.median for entrant, t in timed.items()}
    peers = {entrant: m for entrant, m in medians.items() if contenders[entrant.contender].peer}
    in_fp32 = {entrant: m for entrant, m in peers.items() if contenders[entrant.contender].fp32}
    measurements = []
    for entrant, seconds in medians.items():
        fp32 = contenders[entrant.contender].fp32
        best_peer, ratio = against(seconds, peers)
        best_fp32_peer, fp32_ratio = against(seconds, in_fp32 if fp32 else None)
        as_many, as_many_in_fp32 = (
            {other: m for other, m in group.items() if other.threads == entrant.threads}
            for group in (peers, in_fp32)
        )
        measurements.append(
            Measurement(
                contender=entrant.contender,
                threads=entrant.threads,
                fp32=fp32,
                batch_size=batch_size,
                ms_per_step=spread(timed[entrant].seconds, 1e3 / new_tokens),
                tokens_per_second=round(batch_size * new_tokens / seconds, 1),
                best_peer=best_peer,
                ratio=ratio,
                best_fp32_peer=best_fp32_peer,
                fp32_ratio=fp32_ratio,
                thread_ratio=against(seconds, as_many)[1],
                fp32_thread_ratio=against(seconds, as_many_in_fp32 if fp32 else None)[1],
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
    """Return the costs of beam search, and of this version relative to another.

    A step with beams is compared with a greedy step of as many rows, and a call of Dragoman with a
    call of the other version.

    Args:
        first: turns that generated only one token; empty: not measured
    """
    calls = {entrant: t.seconds for entrant, t in turns.items() if t.counted}
    steps = {
        entrant: [(call - t.median) / (new_tokens - 1) for call in calls[entrant]]
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
