"""How close the decisions were that came out otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dragoman.runtime.format.records import Divergence

from ..figures import counted, figure
from .svg import BAD, SERIES, SMALL, Chart, axes_of, draw

MOST_BINS = 20


def draw_margins(divergences: Sequence[Divergence], explained: float | None, name: str) -> Chart:
    """A histogram of the oracle's margins.

    Args:
        divergences: at least one
        explained: the largest margin that parity allows; None: unknown
    """
    margins = np.array([divergence.margin for divergence in divergences])
    shown = margins[margins < 1e30]  # a forbidden token's is infinite
    beyond = len(margins) - len(shown)

    def paint(picture: Figure) -> None:
        axes = axes_of(picture, x="margin, logits", y="sequences that differ")
        end = max([*shown, *([explained] if explained else [])], default=1.0)
        bins = min(MOST_BINS, max(8, len(shown) // 4))
        axes.hist(shown, bins=bins, range=(0, end * 1.02), color=SERIES[0])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if explained is not None:
            axes.axvline(explained, color=BAD, linewidth=1.2, linestyle="--")
            axes.annotate(
                f"allowed: {figure(explained)}",
                (explained, 0.97),
                xycoords=("data", "axes fraction"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="top",
                color=BAD,
                fontsize=SMALL,
            )
        axes.set_xlim(left=0)

    caption = (
        "Margins: how much more the trained model prefers its own token where an output first "
        "differs. Small ones are near ties."
    )
    if beyond:
        caption += f" {beyond} more chose a token that is forbidden."
    largest = figure(max(shown, default=0.0), 3)
    alt = f"Histogram of {counted(len(shown), 'margin')}, the largest {largest} logits"
    return draw(paint, size=(3.7, 2.4), name=name, alt=alt, caption=caption)
