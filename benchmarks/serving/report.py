"""The figures as a record, a table and curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from ..circumstances import Circumstances
from ..closing import show_circumstances
from ..harness import Failure
from ..pictures.style import COLOURS, figure, styled, tidy
from .measuring import Point, Searched
from .standing import Goodput, Standing

HEADINGS = (
    *("", "alone p50 / p95, ms", "its own 4 x", "workers x threads", "x best peer", "x in fp32"),
    *("p95 asked of all, ms", "the same for all", "workers x threads", "x best peer", "memory, MB"),
)
MARKERS = ("o", "s", "^", "D", "v", "X")


@dataclass(frozen=True)
class Record:
    """All figures of one run.

    Attributes:
        model, requests: descriptions
        seconds: that requests arrived at each rate, from `seed`
        slower: see `measuring.SLOWER`
        entries: all tools in all arrangements
        overhead_ms: see `overhead.overhead_ms`; None: not measured
    """

    model: str
    requests: str
    seconds: float
    seed: int
    slower: float
    tools: Sequence[Standing]
    entries: Sequence[Searched]
    overhead_ms: float | None
    failures: Sequence[Failure]
    circumstances: Circumstances

    def to_json(self) -> str:
        fields = asdict(self)
        circumstances = fields.pop("circumstances")
        fields["tools"] = [_without_curves(asdict(tool)) for tool in self.tools]
        return json.dumps(fields | circumstances, indent=1) + "\n"


def _without_curves(standing: dict[str, Any]) -> dict[str, Any]:
    """They stand among the entries."""
    return {
        name: {"arrangement": value.pop("at")["arrangement"], **value}
        if isinstance(value, dict)
        else value
        for name, value in standing.items()
    }


def show(record: Record) -> None:
    """Print all figures."""
    table = Table(
        title=f"{record.model}; {record.requests}. Requests a second at which p95 is at most "
        f"{record.slower:g} x that of a tool's own requests alone; and the same for all in fp32, "
        f"and for all others: {record.slower:g} x that of the fastest of them",
        title_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    for tool in record.tools:
        best, exact = tool.own.at, tool.own_in_fp32
        table.add_row(
            tool.tool,
            f"{best.alone.p50 * 1000:.0f} / {best.alone.p95 * 1000:.0f}",
            *_cells(tool.own),
            _ratio(exact) if exact else "",
            f"{record.slower * best.fastest * 1000:.0f}",
            *_cells(tool.common),
            f"{best.memory_mb:,.0f}",
        )
    console = Console(width=150)
    console.print(table)
    if record.overhead_ms is not None:
        console.print(f"HTTP and queue add {record.overhead_ms:.2f} ms to a request that is alone")
    show_circumstances(console, record.circumstances, record.failures)


def _cells(goodput: Goodput) -> list[str]:
    return [
        f"{goodput.rate:.1f}",
        str(goodput.at.arrangement),
        _ratio(goodput),
    ]


def _ratio(goodput: Goodput) -> str:
    return "" if goodput.ratio is None else f"{goodput.ratio:.2f}"


def draw(record: Record) -> Figure:
    """Percentiles of latency over the rate of requests, of each tool in its best arrangement; peers
    are dashed. Dotted lines are the p95 that is asked of all.
    """
    looks = zip(record.tools, COLOURS, MARKERS, strict=False)
    with styled():
        picture = figure(4.2)
        picture.suptitle(record.model, fontsize="medium")
        panels = picture.subplots(1, 3, sharey=True)
        for tool, colour, marker in looks:
            points = [point for point in tool.own.at.points if not point.failed]
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
        for fastest in {tool.own.at.fastest for tool in record.tools}:
            panels[1].axhline(record.slower * fastest * 1000, color="grey", linestyle=":")
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
