"""The figures as a record, a table and curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances
from ..harness import Failure
from ..pictures.style import COLOURS, figure, styled, tidy
from .measuring import Point, Served

HEADINGS = (
    *("", "workers x threads", "goodput, requests/s", "x best peer", "x in fp32", "strict", "x"),
    *("alone p50 / p95, ms", "memory, MB"),
)
MARKERS = ("o", "s", "^", "D", "v", "X")


@dataclass(frozen=True)
class Record:
    """All figures of one run.

    Attributes:
        shape: a description of the model
        source_lengths: the shortest and the longest
        longest_output: the most new tokens of a request
        seconds: that requests arrived at each rate, from `seed`
        slower: see `measuring.SLOWER`
        overhead_ms: see `overhead.overhead_ms`; None: not measured
    """

    shape: str
    source_lengths: tuple[int, int]
    longest_output: int
    seconds: float
    seed: int
    slower: float
    tools: Sequence[Served]
    overhead_ms: float | None
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
        title=f"{record.shape}; sources of {shortest} to {longest} tokens, outputs of at most "
        f"{record.longest_output}; goodput: p95 at most {record.slower:g} x that of requests "
        "alone; strict: x their median",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for tool in record.tools:
        table.add_row(
            tool.tool,
            str(tool.arrangement),
            f"{tool.goodput:.1f}",
            "" if tool.ratio is None else f"{tool.ratio:.2f}",
            "" if tool.fp32_ratio is None else f"{tool.fp32_ratio:.2f}",
            f"{tool.strict:.1f}",
            "" if tool.strict_ratio is None else f"{tool.strict_ratio:.2f}",
            f"{tool.alone.p50 * 1000:.0f} / {tool.alone.p95 * 1000:.0f}",
            f"{tool.memory_mb:,.0f}",
        )
    console = Console(width=132)
    console.print(table)
    if record.overhead_ms is not None:
        console.print(f"HTTP and queue add {record.overhead_ms:.2f} ms to a request that is alone")
    show_circumstances(console, record.circumstances, record.failures)


def draw(record: Record) -> Figure:
    """Percentiles of latency over the rate of requests; peers are dashed."""
    looks = zip(record.tools, COLOURS, MARKERS, strict=False)
    with styled():
        picture = figure(4.2)
        picture.suptitle(record.shape, fontsize="medium")
        panels = picture.subplots(1, 3, sharey=True)
        for tool, colour, marker in looks:
            points = [point for point in tool.points if not point.failed]
            for panel, values in zip(panels, _percentiles(points), strict=True):
                panel.plot(
                    [point.rate for point in points],
                    values,
                    label=tool.tool,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linestyle="-" if tool.tool.startswith("Dragoman") else "--",
                )
        for panel, name in zip(panels, ("p50", "p95", "p99"), strict=True):
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            tidy(panel, x="requests a second", y=f"{name}, ms")
        handles, labels = panels[0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return picture


def _percentiles(points: Sequence[Point]) -> tuple[list[float], list[float], list[float]]:
    return (
        [point.p50 * 1000 for point in points],
        [point.p95 * 1000 for point in points],
        [point.p99 * 1000 for point in points],
    )
