"""What the parts of a model cost, from a record of `dragoman.benchmarks.costs`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..costs.counting import Part, encoder, step, total
from ..costs.report import CostRecord, Series, bytes_read, series
from .style import COLOURS, figure, styled, tidy

RECORD = Path(__file__).parents[1] / "results" / "costs-base-1-threads.json"
LENGTHS = np.unique(np.geomspace(16, 4096, 40).astype(int)).tolist()
ROWS = (1, 8, 32)
COLOUR: dict[Part, str] = {
    "projections": COLOURS[0],
    "feed-forward": COLOURS[1],
    "self-attention": COLOURS[2],
    "cross-attention": COLOURS[3],
    "cross keys and values": COLOURS[4],
    "output": "#c44e6a",
    "the rest": COLOURS[5],
}


def draw_encoder(record: CostRecord) -> Figure:
    """Shares of operations by formulas, and of the time, as sources grow longer."""
    with styled():
        picture = figure(3.1)
        left, right = picture.subplots(1, 2)
        counted = [encoder(record.config, length) for length in LENGTHS]
        parts = [cost.part for cost in counted[0]]
        sums = [total(costs).operations for costs in counted]
        shares = [
            [costs[index].operations / whole for costs, whole in zip(counted, sums, strict=True)]
            for index in range(len(parts))
        ]
        left.stackplot(LENGTHS, shares, colors=[COLOUR[part] for part in parts])
        left.set_xscale("log", base=2)
        left.set_xlim(LENGTHS[0], LENGTHS[-1])
        left.set_ylim(0, 1)
        _bars(right, series(record)[0], share=True)
        for axes, title, what in (
            (left, "counted", "share of multiply-accumulates"),
            (right, "measured", "share of the time"),
        ):
            tidy(axes, title=title, x="tokens of the source", y=what, grid=False)
        _legend(picture, right)
    return picture


def draw_step(record: CostRecord) -> Figure:
    """Bytes that a step reads by formulas, and milliseconds, as targets grow longer and with more
    rows.
    """
    with styled():
        picture = figure(3.1)
        left, middle, right = picture.subplots(1, 3, width_ratios=(1.2, 1.2, 0.8))
        for colour, rows in zip(COLOURS, ROWS, strict=False):
            costs = [total(step(record.config, n, n, rows=rows)) for n in LENGTHS]
            megabytes = [bytes_read(cost) / rows / 1e6 for cost in costs]
            left.plot(LENGTHS, megabytes, color=colour, label=f"rows: {rows}")
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        left.legend(frameon=False)
        tidy(left, title="counted, fp32", x="tokens of source and target", y="MB read for each row")
        _, _, by_position, by_rows = series(record)
        _bars(middle, by_position)
        tidy(middle, title="measured, 1 row", x="position", y="ms", grid=False)
        _bars(right, by_rows, each_row=True)
        tidy(right, title="measured", x="rows", y="ms for each row", grid=False)
        _legend(picture, right)
    return picture


def _bars(axes: Axes, chosen: Series, *, share: bool = False, each_row: bool = False) -> None:
    """Times of parts upon each other."""
    measured = chosen.measured
    names = [f"{vars(m)[chosen.varies]}" for m in measured]
    below = np.zeros(len(measured))
    for part, colour in COLOUR.items():
        times = np.array([m.ms.get(part, 0.0) for m in measured])
        if not times.any():
            continue
        if share:
            times /= [m.milliseconds for m in measured]
        if each_row:
            times /= [m.rows for m in measured]
        axes.bar(names, times, bottom=below, color=colour, label=part, width=0.8)
        below += times
    axes.set_xlim(-0.6, len(names) - 0.4)


def _legend(picture: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
