"""A comparison as a record, a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances, standing
from ..harness import Entrant, Failure, Footprint
from .contenders import CTRANSLATE2, DRAGOMAN
from .floor import Floor
from .measuring import Cost, Measurement
from .pace import Pace


@dataclass(frozen=True)
class Comparison:
    """All figures of one run.

    Attributes:
        shape: a description of the model
        threads: every contender takes part with each of these numbers
        word_error: of the trained model g2p-en in Dragoman's precisions, by contender
        longest_source: if lengths are drawn between `source_length` and this one; not in the record
            otherwise
        num_beams: not in the record of greedy decoding
        costs: not in the record if there are none
        paces: of the processor, measured in the same run, by number of threads; likewise
        floors: of Dragoman's precisions; likewise
    """

    shape: str
    source_length: int
    new_tokens: int
    threads: Sequence[int]
    rounds: int
    measurements: Sequence[Measurement]
    footprints: Sequence[Footprint]
    word_error: dict[str, float]
    failures: Sequence[Failure]
    circumstances: Circumstances
    longest_source: int | None = None
    num_beams: int = 1
    costs: Sequence[Cost] = ()
    paces: Sequence[Pace] = ()
    floors: Sequence[Floor] = ()

    def to_json(self) -> str:
        figures = asdict(self)
        circumstances = figures.pop("circumstances")
        if self.longest_source is None:
            del figures["longest_source"]
        if self.num_beams == 1:
            del figures["num_beams"]
        for name in ("costs", "paces", "floors"):
            if not figures[name]:
                del figures[name]
        return json.dumps(figures | circumstances, indent=1) + "\n"

    @property
    def batch_sizes(self) -> list[int]:
        return list(dict.fromkeys(m.batch_size for m in self.measurements))


MINIMUM_WIDTH = 132
HEADINGS = (
    "",
    "batch",
    "threads",
    "ms/step",
    "lowest - highest",
    "tokens/s",
    "x best peer",
    "x in fp32",
    "same tokens",
)
WORD_ERROR = "g2p-en error"


def show(comparison: Comparison) -> None:
    """Print all figures."""
    console = Console()
    if console.width < MINIMUM_WIDTH:
        console = Console(width=MINIMUM_WIDTH)
    console.print(_table(comparison))
    for size in comparison.batch_sizes:
        at_size = [m for m in comparison.measurements if m.batch_size == size]
        best = next((m.best_peer for m in at_size if m.best_peer), None)
        in_fp32 = next((m.best_fp32_peer for m in at_size if m.best_fp32_peer), None)
        if best is not None:
            console.print(f"best peer at batch {size}: {best}; in fp32: {in_fp32}")
    for line in standings(comparison.measurements):
        console.print(line, soft_wrap=True)
    for line in reached(comparison):
        console.print(line, soft_wrap=True)
    for c in comparison.costs:
        median, lowest, highest = c.ratio
        console.print(
            f"{Entrant(c.contender, c.threads)}, batch {c.batch_size}: "
            f"a {c.of} takes {c.ms[0]:.2f} ms, {median:.3f} ({lowest:.3f} - {highest:.3f}) "
            f"times that of {c.compared_with}",
            soft_wrap=True,
        )
    for f in comparison.footprints:
        console.print(
            f"{Entrant(f.contender, f.threads)}: load {f.load_seconds:.2f} s, peak memory "
            f"{f.peak_memory_mb:.0f} MB, disk {f.disk_mb:.0f} MB"
        )
    show_circumstances(console, comparison.circumstances, comparison.failures)


def standings(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Dragoman's precisions against peers in fp32, and against all of them: each with its best
    number of threads, and all with the same number.
    """
    best: dict[tuple[str, int], Measurement] = {}
    for m in sorted(measurements, key=lambda m: m.ms_per_step[0], reverse=True):
        best[m.contender, m.batch_size] = m
    for contender in dict.fromkeys(m.contender for m in measurements):
        if contender.startswith(DRAGOMAN):
            own = [m for (name, _), m in best.items() if name == contender]
            in_fp32 = {_case(m, m.best_fp32_peer): m.fp32_ratio for m in own if m.fp32_ratio}
            of_all = {_case(m, m.best_peer): m.ratio for m in own if m.ratio}
            if in_fp32:
                yield standing(contender, "peer in fp32", in_fp32)
            if of_all:
                yield standing(contender, "peer of all", of_all)
            tried = sorted({m.threads for m in measurements})
            for threads in tried if len(tried) > 1 else ():
                alike = [
                    m for m in measurements if (m.contender, m.threads) == (contender, threads)
                ]
                name = str(Entrant(contender, threads))
                in_fp32 = {f"batch {m.batch_size}": r for m in alike if (r := m.fp32_thread_ratio)}
                of_all = {f"batch {m.batch_size}": r for m in alike if (r := m.thread_ratio)}
                if in_fp32:
                    yield standing(name, "peer in fp32 with as many", in_fp32)
                if of_all:
                    yield standing(name, "peer of all with as many", of_all)


def reached(comparison: Comparison) -> Iterator[str]:
    """How far Dragoman's precisions are from the floor."""
    medians = {(m.contender, m.threads, m.batch_size): m for m in comparison.measurements}
    for pace in comparison.paces:
        products = ", ".join(f"{count:,.0f} in {name}" for name, count in pace.products.items())
        threads = f"{pace.threads} thread{'s' if pace.threads > 1 else ''}"
        yield (
            f"{threads}: {pace.gigabytes_per_second:.1f} GB/s are read, 10^9 products a second: "
            f"{products}"
        )
        for contender in dict.fromkeys(floor.contender for floor in comparison.floors):
            found = [
                f"batch {floor.batch_size}: {floor.ms:.2f} ms, {floor.ms / m.ms_per_step[0]:.0%}"
                for floor in comparison.floors
                if (floor.contender, floor.threads) == (contender, pace.threads)
                and (m := medians.get((contender, floor.threads, floor.batch_size)))
            ]
            if found:
                yield f"floor of {contender}, and its share of a step: {'; '.join(found)}"


def _case(m: Measurement, peer: str | None) -> str:
    return f"batch {m.batch_size}, against {peer}"


def describe_decoding(num_beams: int) -> str:
    return "greedy" if num_beams == 1 else f"{num_beams} beams"


def _table(comparison: Comparison) -> Table:
    longest = f" to {comparison.longest_source}" if comparison.longest_source else ""
    table = Table(
        title=f"{comparison.shape}; source {comparison.source_length}{longest}, "
        f"{comparison.new_tokens} new "
        f"tokens, {describe_decoding(comparison.num_beams)}, {comparison.rounds} rounds",
        title_justify="left",
    )
    for heading in (*HEADINGS, *([WORD_ERROR] if comparison.word_error else [])):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for size in comparison.batch_sizes:
        for m in (m for m in comparison.measurements if m.batch_size == size):
            median, lowest, highest = m.ms_per_step
            errors = []
            if comparison.word_error:
                error = comparison.word_error.get(m.contender)
                errors = ["" if error is None else f"{error:.2%}"]
            table.add_row(
                m.contender,
                str(m.batch_size),
                str(m.threads),
                f"{median:.2f}",
                f"{lowest:.2f} - {highest:.2f}",
                f"{m.tokens_per_second:,.0f}",
                "" if m.ratio is None else f"{m.ratio:.2f}",
                "" if m.fp32_ratio is None else f"{m.fp32_ratio:.2f}",
                f"{m.identical}/{m.batch_size}",
                *errors,
            )
        table.add_section()
    return table


def plot(comparison: Comparison, path: Path) -> None:
    """Draw tokens per second, each contender's at its best number of threads, as bars: one panel
    with its own scale for each batch size.
    """
    from matplotlib.figure import Figure

    sizes = comparison.batch_sizes
    names = list(dict.fromkeys(m.contender for m in comparison.measurements))[::-1]
    figure = Figure(figsize=(2 + 2.8 * len(sizes), 1.2 + 0.3 * len(names)), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        at_size = [m for m in comparison.measurements if m.batch_size == size]
        lengths = [max(m.tokens_per_second for m in at_size if m.contender == n) for n in names]
        bars = axes.barh(range(len(names)), lengths, color=[_colour(name) for name in names])
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        axes.set_yticks(range(len(names)), names if size == sizes[0] else [])
        axes.set_xlim(0, max(lengths) * 1.2)
        axes.set_title(f"batch {size}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    threads = " or ".join(map(str, comparison.threads))
    figure.supxlabel("new tokens per second", fontsize=9)
    figure.suptitle(
        f"{comparison.shape}, {describe_decoding(comparison.num_beams)}, {threads} threads",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)


def _colour(contender: str) -> str:
    if contender.startswith(DRAGOMAN):
        return "tab:blue"
    return "tab:orange" if contender.startswith(CTRANSLATE2) else "tab:gray"
