"""The figures as a record and as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances
from ..harness import Failure
from .measuring import Measurement

HEADINGS = ("", "batch", "source", "ms/step", "lowest - highest", "tokens/s")


@dataclass(frozen=True)
class Record:
    """All figures of one run.

    Attributes:
        shape: a description of the model
        new_tokens: that every row generates
        threads: of every contender
        by_batch, by_source: see `Growth`
    """

    shape: str
    new_tokens: int
    threads: int
    rounds: int
    by_batch: Sequence[Measurement]
    by_source: Sequence[Measurement]
    failures: Sequence[Failure]
    circumstances: Circumstances

    def to_json(self) -> str:
        fields = asdict(self)
        circumstances = fields.pop("circumstances")
        return json.dumps(fields | circumstances, indent=1) + "\n"

    @property
    def described(self) -> str:
        """Of the model and of what it does, on one line."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.shape}; {self.new_tokens} new tokens, greedy, {threads}"


def show(record: Record) -> None:
    """Print all figures."""
    console = Console(width=132)
    for title, measurements in (
        ("as batches grow", record.by_batch),
        ("as sources grow longer", record.by_source),
    ):
        console.print(_table(f"{record.described}, {record.rounds} rounds: {title}", measurements))
    show_circumstances(console, record.circumstances, record.failures)


def _table(title: str, measurements: Sequence[Measurement]) -> Table:
    """A section for each contender, so that its growth is read downwards."""
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for _, points in groupby(measurements, lambda measurement: measurement.contender):
        for m in points:
            median, lowest, highest = m.ms_per_step
            table.add_row(
                m.contender,
                str(m.batch_size),
                str(m.source_length),
                f"{median:.2f}",
                f"{lowest:.2f} - {highest:.2f}",
                f"{m.tokens_per_second:,.0f}",
            )
        table.add_section()
    return table
