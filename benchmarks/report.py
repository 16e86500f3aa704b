"""A comparison as a table and as a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .contenders import CTRANSLATE2
from .measuring import Failure, Footprint, Measurement


@dataclass(frozen=True)
class Comparison:
    """All figures of one run, and what they were measured on.

    Attributes:
        word_error: of g2p-en, trained weights, in Dragoman's precisions: by contender
        load_average: of the machine just before, over a minute: what else ran on it
    """

    shape: str
    source_length: int
    new_tokens: int
    threads: int
    rounds: int
    measurements: tuple[Measurement, ...]
    footprints: tuple[Footprint, ...]
    word_error: dict[str, float]
    failures: tuple[Failure, ...]
    machine: str
    load_average: float
    versions: dict[str, str]
    date: str
    command: str


LEAST_WIDTH = 124
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
    console = Console()
    if console.width < LEAST_WIDTH:
        console = Console(width=LEAST_WIDTH)
    table = Table(
        title=f"{comparison.shape}; source {comparison.source_length}, {comparison.new_tokens} new "
        f"tokens, {comparison.threads} threads, {comparison.rounds} rounds",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    sizes = list(dict.fromkeys(m.batch_size for m in comparison.measurements))
    for size in sizes:
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
    console.print(table)
    best = {m.batch_size: m.best_ctranslate2 for m in comparison.measurements if m.best_ctranslate2}
    for size, mode in best.items():
        console.print(f"best {CTRANSLATE2} mode at batch {size}: {mode}")
    for f in comparison.footprints:
        console.print(
            f"{f.contender}: load {f.load_seconds:.2f} s, peak memory {f.peak_memory_mb:.0f} MB, "
            f"disk {f.disk_mb:.0f} MB"
        )
    console.print(f"{comparison.machine}; load average before: {comparison.load_average:.2f}")
    console.print(comparison.command, soft_wrap=True, markup=False)
    for failure in comparison.failures:
        console.print(f"not measured: {failure.contender}: {failure.reason}", markup=False)


def plot(comparison: Comparison, path: Path) -> None:
    """Tokens per second of each contender: a group of bars for each batch size, to its scale."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(m.batch_size for m in comparison.measurements))
    names = list(dict.fromkeys(m.contender for m in comparison.measurements))[::-1]
    figure = Figure(figsize=(2 + 2.8 * len(sizes), 1.2 + 0.3 * len(names)), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        speeds = {m.contender: m for m in comparison.measurements if m.batch_size == size}
        heights = [speeds[name].tokens_per_second for name in names]
        bars = axes.barh(range(len(names)), heights, color=[_colour(name) for name in names])
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        axes.set_yticks(range(len(names)), names if size == sizes[0] else [])
        axes.set_xlim(0, max(heights) * 1.2)
        axes.set_title(f"batch {size}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("new tokens per second", fontsize=9)
    figure.suptitle(f"{comparison.shape}, {comparison.threads} threads", fontsize=10)
    figure.savefig(path, dpi=150)


def _colour(name: str) -> str:
    if name.startswith("Dragoman"):
        return "tab:blue"
    return "tab:orange" if name.startswith(CTRANSLATE2) else "tab:gray"
