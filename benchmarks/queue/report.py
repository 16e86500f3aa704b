"""The figures of a queue as a record and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances
from ..harness import Failure, Spread
from .measuring import Measurement

HEADINGS = (
    "",
    "at most",
    "threads",
    "tokens/s",
    "x frozen",
    "same tokens",
    "mean delay, s",
)


@dataclass(frozen=True)
class QueueComparison:
    """All figures of one run.

    Attributes:
        shape: a description of the model
        requests: their number
        source_lengths, output_lengths: the shortest and the longest
        arrivals_per_second: the mean; None: all wait at the beginning
    """

    shape: str
    requests: int
    source_lengths: tuple[int, int]
    output_lengths: tuple[int, int]
    arrivals_per_second: float | None
    threads: Sequence[int]
    rounds: int
    measurements: Sequence[Measurement]
    failures: Sequence[Failure]
    circumstances: Circumstances

    def to_json(self) -> str:
        fields = asdict(self)
        circumstances = fields.pop("circumstances")
        return json.dumps(fields | circumstances, indent=1) + "\n"


def show(comparison: QueueComparison) -> None:
    """Print all figures."""
    per_second = comparison.arrivals_per_second
    arrivals = "all waiting" if per_second is None else f"{per_second:g} arrivals a second"
    table = Table(
        title=f"{comparison.shape}; {comparison.requests} requests, {arrivals}; sources of "
        f"{_range(comparison.source_lengths)}, outputs of {_range(comparison.output_lengths)} "
        f"tokens; {comparison.rounds} rounds",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for size in dict.fromkeys(m.max_batch_size for m in comparison.measurements):
        for m in (m for m in comparison.measurements if m.max_batch_size == size):
            table.add_row(
                m.contender,
                str(size),
                str(m.threads),
                _text(m.tokens_per_second, 0),
                _text(m.ratio, 3),
                "" if m.identical is None else f"{m.identical}/{comparison.requests}",
                _text(m.mean_delay, 2),
            )
        table.add_section()
    console = Console(width=132)
    console.print(table)
    show_circumstances(console, comparison.circumstances, comparison.failures)


def _range(lengths: tuple[int, int]) -> str:
    return f"{lengths[0]} to {lengths[1]}"


def _text(values: Spread | None, decimals: int) -> str:
    if values is None:
        return ""
    median, lowest, highest = values
    return f"{median:,.{decimals}f} ({lowest:,.{decimals}f} - {highest:,.{decimals}f})"
