"""The figures as curves: two panels as batches grow, two as sources grow longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..pictures.style import COLOURS, figure, styled, tidy
from .measuring import Measurement
from .report import Record

MARKERS = ("o", "s", "^", "D", "v", "X")
"""One for each contender, by which they differ without colours, too."""


def draw(record: Record) -> Figure:
    """Milliseconds per step and tokens a second of every contender; peers are dashed."""
    names = dict.fromkeys(m.contender for m in record.by_batch)
    looks = dict(zip(names, zip(COLOURS, MARKERS, strict=True), strict=False))
    with styled():
        picture = figure(6.2)
        picture.suptitle(record.described, fontsize="medium")
        panels = picture.subplots(2, 2)
        for (left, right), measurements, varies, x in (
            (panels[0], record.by_batch, "batch_size", "sources in the batch"),
            (panels[1], record.by_source, "source_length", "tokens of the source"),
        ):
            for name, (colour, marker) in looks.items():
                own = [m for m in measurements if m.contender == name]
                sizes = [vars(m)[varies] for m in own]
                look: dict[str, Any] = {
                    "label": name,
                    "color": colour,
                    "marker": marker,
                    "markersize": 4,
                    "linestyle": "--" if own[0].peer else "-",
                }
                left.plot(sizes, [m.ms_per_step[0] for m in own], **look)
                right.plot(sizes, [m.tokens_per_second for m in own], **look)
            _scale(left, measurements, varies)
            _scale(right, measurements, varies)
            tidy(left, x=x, y="ms per step")
            tidy(right, x=x, y="tokens per second")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return picture


def _scale(axes: Axes, measurements: Sequence[Measurement], varies: str) -> None:
    """Logarithmic, on which doubling is a step of the same width, with a tick at every size."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    sizes = sorted({vars(m)[varies] for m in measurements})
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
