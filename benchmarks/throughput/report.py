"""The figures as a record and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances
from ..harness import Failure
from .measuring import Throughput

HEADINGS = ("", "workers x threads", "tokens/s", "x best peer", "x in fp32", "tokens", "memory, MB")


@dataclass(frozen=True)
class Record:
    """All figures of one run.

    Attributes:
        shape: a description of the model
        sentences: their number
        source_lengths: the shortest and the longest
        longest_output: the most new tokens of a sentence
    """

    shape: str
    sentences: int
    source_lengths: tuple[int, int]
    longest_output: int
    rounds: int
    tools: Sequence[Throughput]
    failures: Sequence[Failure]
    circumstances: Circumstances

    def to_json(self) -> str:
        fields = asdict(self)
        circumstances = fields.pop("circumstances")
        return json.dumps(fields | circumstances, indent=1) + "\n"


def show(record: Record) -> None:
    """Print all figures."""
    shortest, longest = record.source_lengths
    table = Table(
        title=f"{record.shape}; {record.sentences} sentences of {shortest} to {longest} tokens, "
        f"outputs of at most {record.longest_output}; {record.rounds} rounds",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for tool in record.tools:
        median, lowest, highest = tool.tokens_per_second
        table.add_row(
            tool.tool,
            str(tool.arrangement),
            f"{median:,.0f} ({lowest:,.0f} - {highest:,.0f})",
            "" if tool.ratio is None else f"{tool.ratio:.2f}",
            "" if tool.fp32_ratio is None else f"{tool.fp32_ratio:.2f}",
            f"{tool.tokens:,}",
            f"{tool.memory_mb:,.0f}",
        )
    console = Console(width=132)
    console.print(table)
    for best in dict.fromkeys(t.best_peer for t in record.tools if t.best_peer):
        console.print(f"best peer: {best}")
    show_circumstances(console, record.circumstances, record.failures)
