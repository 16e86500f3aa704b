"""A comparison as a record, a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..harness import Failure, Footprint
from .contenders import CTRANSLATE2
from .measuring import Measurement


@dataclass(frozen=True)
class Comparison:
    """All figures of one run.

    Attributes:
        shape: a description of the model
        word_error: of the trained model g2p-en in Dragoman's precisions, by contender
        longest_source: if lengths are drawn between `source_length` and this one; not in the record
            otherwise
    """

    shape: str
    source_length: int
    new_tokens: int
    threads: int
    rounds: int
    measurements: Sequence[Measurement]
    footprints: Sequence[Footprint]
    word_error: dict[str, float]
    failures: Sequence[Failure]
    circumstances: Circumstances
    longest_source: int | None = None

    def to_json(self) -> str:
        figures = asdict(self)
        circumstances = figures.pop("circumstances")
        if self.longest_source is None:
            del figures["longest_source"]
        return json.dumps(figures | circumstances, indent=1) + "\n"

    @property
    def batch_sizes(self) -> list[int]:
        return list(dict.fromkeys(m.batch_size for m in self.measurements))


MINIMUM_WIDTH = 124
HEADINGS = (
    "",
    "batch",
    "ms/step",
    "lowest - highest",
    "tokens/s",
    f"x best {CTRANSLATE2}",
    "same tokens",
    "g2p-en error",
)


def show(comparison: Comparison) -> None:
    """Print all figures."""
    console = Console()
    if console.width < MINIMUM_WIDTH:
        console = Console(width=MINIMUM_WIDTH)
    console.print(_table(comparison))
    best = {m.batch_size: m.best_ctranslate2 for m in comparison.measurements if m.best_ctranslate2}
    for size, mode in best.items():
        console.print(f"best {CTRANSLATE2} mode at batch {size}: {mode}")
    for f in comparison.footprints:
        console.print(
            f"{f.contender}: load {f.load_seconds:.2f} s, peak memory {f.peak_memory_mb:.0f} MB, "
            f"disk {f.disk_mb:.0f} MB"
        )
    where = comparison.circumstances
    console.print(f"{where.machine}; load average before: {where.load_average:.2f}")
    console.print(where.command, soft_wrap=True, markup=False)
    for failure in comparison.failures:
        line = f"not measured: {failure.contender}: {failure.reason}"
        console.print(line, soft_wrap=True, markup=False)


def _table(comparison: Comparison) -> Table:
    longest = f" to {comparison.longest_source}" if comparison.longest_source else ""
    table = Table(
        title=f"{comparison.shape}; source {comparison.source_length}{longest}, "
        f"{comparison.new_tokens} new "
        f"tokens, {comparison.threads} threads, {comparison.rounds} rounds",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for size in comparison.batch_sizes:
        for m in (m for m in comparison.measurements if m.batch_size == size):
            median, lowest, highest = m.ms_per_step
            error = comparison.word_error.get(m.contender)
            table.add_row(
                m.contender,
                str(m.batch_size),
                f"{median:.2f}",
                f"{lowest:.2f} - {highest:.2f}",
                f"{m.tokens_per_second:,.0f}",
                "" if m.ratio is None else f"{m.ratio:.2f}",
                f"{m.identical}/{m.batch_size}",
                f"{error:.2%}" if error is not None else "",
            )
        table.add_section()
    return table


def plot(comparison: Comparison, path: Path) -> None:
    """Draw tokens per second as bars: one panel with its own scale for each batch size."""
    from matplotlib.figure import Figure

    sizes = comparison.batch_sizes
    names = list(dict.fromkeys(m.contender for m in comparison.measurements))[::-1]
    figure = Figure(figsize=(2 + 2.8 * len(sizes), 1.2 + 0.3 * len(names)), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        by_contender = {m.contender: m for m in comparison.measurements if m.batch_size == size}
        lengths = [by_contender[name].tokens_per_second for name in names]
        bars = axes.barh(range(len(names)), lengths, color=[_colour(name) for name in names])
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        axes.set_yticks(range(len(names)), names if size == sizes[0] else [])
        axes.set_xlim(0, max(lengths) * 1.2)
        axes.set_title(f"batch {size}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("new tokens per second", fontsize=9)
    figure.suptitle(f"{comparison.shape}, {comparison.threads} threads", fontsize=10)
    figure.savefig(path, dpi=150)


def _colour(contender: str) -> str:
    if contender.startswith("Dragoman"):
        return "tab:blue"
    return "tab:orange" if contender.startswith(CTRANSLATE2) else "tab:gray"
