"""The figures of encoding as a record and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances, standing
from ..harness import Entrant, Failure, Footprint
from .contenders import DRAGOMAN
from .measuring import Measurement

HEADINGS = (
    "",
    "tokens",
    "batch",
    "threads",
    "ms/call",
    "lowest - highest",
    "texts/s",
    "x fp32 peers",
    "x lower peers",
    "cosine",
    "lowest",
)


@dataclass(frozen=True)
class EncodingComparison:
    """All figures of one run.

    Attributes:
        model: its name
        threads: every contender takes part with each of these numbers
    """

    model: str
    threads: Sequence[int]
    rounds: int
    measurements: Sequence[Measurement]
    footprints: Sequence[Footprint]
    failures: Sequence[Failure]
    circumstances: Circumstances

    def to_json(self) -> str:
        fields = asdict(self)
        circumstances = fields.pop("circumstances")
        return json.dumps(fields | circumstances, indent=1) + "\n"


def show(comparison: EncodingComparison) -> None:
    """Print all figures."""
    console = Console(width=150)
    console.print(_table(comparison))
    for line in standings(comparison.measurements):
        console.print(line, soft_wrap=True)
    for f in comparison.footprints:
        console.print(
            f"{Entrant(f.contender, f.threads)}: load {f.load_seconds:.2f} s, peak memory "
            f"{f.peak_memory_mb:.0f} MB, disk {f.disk_mb:.0f} MB",
            soft_wrap=True,
        )
    show_circumstances(console, comparison.circumstances, comparison.failures)


def standings(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Dragoman's precisions against peers in fp32, and against those in lower precisions."""
    for contender in dict.fromkeys(m.contender for m in measurements):
        if not contender.startswith(DRAGOMAN):
            continue
        own = [m for m in measurements if m.contender == contender]
        in_fp32 = {_case(m, m.best_fp32_peer): m.fp32_ratio for m in own if m.fp32_ratio}
        lower = {_case(m, m.best_reduced_peer): m.reduced_ratio for m in own if m.reduced_ratio}
        if in_fp32:
            yield standing(contender, "peer in fp32", in_fp32)
        if lower:
            yield standing(contender, "peer in a lower precision", lower)


def _case(m: Measurement, peer: str | None) -> str:
    threads = f"{m.threads} thread{'s' if m.threads > 1 else ''}"
    return f"{m.length} tokens, batch {m.batch_size}, {threads}, against {peer}"


def _table(comparison: EncodingComparison) -> Table:
    table = Table(
        title=f"{comparison.model}; {comparison.rounds} rounds",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    case = None
    for m in comparison.measurements:
        if case not in (None, (m.length, m.batch_size)):
            table.add_section()
        case = (m.length, m.batch_size)
        median, lowest, highest = m.ms_per_call
        table.add_row(
            m.contender,
            str(m.length),
            str(m.batch_size),
            str(m.threads),
            f"{median:.2f}",
            f"{lowest:.2f} - {highest:.2f}",
            f"{m.texts_per_second:,.0f}",
            "" if m.fp32_ratio is None else f"{m.fp32_ratio:.2f}",
            "" if m.reduced_ratio is None else f"{m.reduced_ratio:.2f}",
            f"{m.cosine:.4f}",
            f"{m.lowest_cosine:.4f}",
        )
    return table
