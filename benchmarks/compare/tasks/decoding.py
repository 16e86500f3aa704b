"""Measures latency, throughput and correctness of decoding a fixed number of new tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import DragomanError

from ...peers.interface import Batch, Rows
from ...processes import ProcessError
from ..contenders.text import AS_MANY_ROWS, BEFORE, REFERENCE, TextContender, Workload
from ..record import Row
from ..rounds import Entrant, Interrupted, Turns, against, paired, spread
from ..task import Run

if TYPE_CHECKING:
    from dragoman.runtime.decoding.results import Result

TURN_SECONDS = 0.5
"""A batch is decoded again until that has taken so long."""
FIRST = ", first token"
"""Added to the name of a batch of one new token."""


def measure_decoding(
    run: Run, contenders: Sequence[TextContender], workload: Workload, checkpoint: Path
) -> dict[str, Any]:
    """Measure contenders: `measurements`, `costs`, `footprints`, `failures`.

    With beams, a batch of one new token is also measured, to compute the time of the steps alone.
    After an interruption, the complete batch sizes are the result.
    """
    batches = {f"batch {size}": workload.batch(size) for size in workload.batch_sizes}
    if workload.num_beams > 1 and workload.new_tokens > 1:
        batches |= {f"{name}{FIRST}": b._replace(new_tokens=1) for name, b in batches.items()}
    ways: dict[str, Any] = {"threads": workload.threads, "rounds": workload.rounds}
    ways |= {"turn_seconds": workload.turn_seconds, "check": check_lengths}
    try:
        results = run.take_turns(contenders, batches, checkpoint=checkpoint, **ways)
    except Interrupted as interruption:
        results = interruption.results
    measurements: list[Row] = []
    costs: list[Row] = []
    by_name = {contender.name: contender for contender in contenders}
    for size in workload.batch_sizes:
        if turns := results.turns.get(f"batch {size}"):
            first = results.turns.get(f"batch {size}{FIRST}", {})
            measurements += measurements_of(turns, by_name, size, workload.new_tokens)
            costs += costs_of(turns, first, size, workload.new_tokens)
    return {
        "measurements": measurements,
        "costs": costs,
        "footprints": results.footprints,
        "failures": results.failures,
    }


def check_lengths(batch: Batch, rows: Rows) -> None:
    """Raise ProcessError unless every source got exactly the new tokens of the batch."""
    lengths = {len(row) for row in rows}
    if len(rows) != len(batch.sources) or lengths != {batch.new_tokens}:
        raise ProcessError(
            f"decoding: expected {len(batch.sources)} rows of {batch.new_tokens} new tokens, "
            f"found {len(rows)} rows of {sorted(lengths)}"
        )


def pace_of(turns: Turns[Rows], batch_size: int, new_tokens: int) -> dict[str, Any]:
    """Return the figures of the turns of a contender.

    Returns:
        `ms_per_step`: spread of the time of a call, including the encoder, per new token;
        `tokens_per_second`: new tokens of all sources over the median time of a call
    """
    return {
        "ms_per_step": spread(turns.seconds, 1e3 / new_tokens),
        "tokens_per_second": round(batch_size * new_tokens / turns.median, 1),
    }


def measurements_of(
    turns: Mapping[Entrant, Turns[Rows]],
    contenders: Mapping[str, TextContender],
    batch_size: int,
    new_tokens: int,
) -> list[Row]:
    """Return a row for each timed contender and number of threads, at one batch size.

    Returns:
        rows with the figures of `pace_of`; those of `against` the peers, each at its best number of
        threads, and against those in fp32, if the contender is in fp32; `identical`: number of
        sources whose tokens equal the reference's; and `thread_ratio` and `fp32_thread_ratio` to
        the best peers with as many threads
    """
    expected = next(t.outcome for entrant, t in turns.items() if entrant.contender == REFERENCE)
    timed = {e: own for e, own in turns.items() if own.counted and AS_MANY_ROWS not in e.contender}
    peers = {e: own.median for e, own in timed.items() if contenders[e.contender].peer}
    rows: list[Row] = []
    for entrant, own in timed.items():
        fp32, median = contenders[entrant.contender].fp32, own.median
        in_fp32 = {e: s for e, s in peers.items() if fp32 and contenders[e.contender].fp32}
        same, same_in_fp32 = (
            {e: s for e, s in group.items() if e.threads == entrant.threads}
            for group in (peers, in_fp32)
        )
        rows.append(
            {
                **entrant._asdict(),
                "fp32": fp32,
                "batch_size": batch_size,
                **pace_of(own, batch_size, new_tokens),
                **against(median, peers),
                **against(median, in_fp32, "fp32"),
                "identical": sum(a == b for a, b in zip(expected, own.outcome, strict=True)),
                "thread_ratio": against(median, same)["ratio"],
                "fp32_thread_ratio": against(median, same_in_fp32)["ratio"],
            }
        )
    return rows


def costs_of(
    turns: Mapping[Entrant, Turns[Rows]],
    first: Mapping[Entrant, Turns[Rows]],
    batch_size: int,
    new_tokens: int,
) -> list[Row]:
    """Return the costs of beam search, and of this version relative to another.

    A step with beams is compared with a greedy step of as many rows, and a call of Dragoman with a
    call of the other version. `first` are turns that generated only one token, if measured.

    Returns:
        rows of what is compared, `of` a "step" after the first, without the encoder, or a "call";
        the spreads of both times, and of their ratio round by round
    """
    calls = {entrant: t.seconds for entrant, t in turns.items() if t.counted}
    steps = {
        entrant: [(call - t.median) / (new_tokens - 1) for call in calls[entrant]]
        for entrant, t in first.items()
        if t.counted
    }
    return [
        {
            "contender": entrant.contender,
            "compared_with": other.contender,
            "threads": entrant.threads,
            "batch_size": batch_size,
            "of": of,
            "ms": spread(seconds[entrant], 1e3),
            "compared_ms": spread(seconds[other], 1e3),
            "ratio": paired(seconds[entrant], seconds[other]),
        }
        for suffix, of, seconds in ((AS_MANY_ROWS, "step", steps), (BEFORE, "call", calls))
        for entrant in seconds
        for other in [entrant._replace(contender=f"{entrant.contender}{suffix}")]
        if other in seconds
    ]


def texts_of(results: Sequence[Result], what: str) -> list[str]:
    """Return the texts of results; raise DragomanError if a source was rejected."""
    rejected = [result.error for result in results if result.error]
    if rejected:
        expected = f"{what}: expected a result for every source, found {len(rejected)} rejected"
        raise DragomanError(f"{expected}, the first with: {rejected[0]}")
    return [result.text or "" for result in results]
