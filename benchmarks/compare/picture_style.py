"""The style of pictures, and reproducible output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dragoman.files.regular_files import write_whole

WIDTH = 7.4
"""Inches: as wide as the text of a page."""
COLOURS = ("#2f6db3", "#d9742b", "#3f9a5f", "#8b5fb0", "#b8a029", "#8c8c8c")
MARKERS = ("o", "s", "^", "D", "v", "X")
"""One for each colour, so that lines also differ without colours."""
HEAT = "viridis"
SIZES = "font.size", "legend.fontsize", *(f"{x}.labelsize" for x in ("axes", "xtick", "ytick"))
SETTINGS: Any = {
    **dict.fromkeys((*SIZES, "axes.titlesize"), 8.5),
    "svg.fonttype": "none",  # text instead of paths: a quarter of the size
    "svg.hashsalt": "dragoman",  # reproducible element ids
}


def styled() -> AbstractContextManager[None]:
    """Apply the style within the context."""
    return mpl.rc_context(SETTINGS)


def figure(height: float, width: float = WIDTH) -> Figure:
    """Create an empty figure on white, which is readable on dark pages too."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Axes, *, title: str = "", x: str, y: str, grid: bool = True) -> None:
    """Label the axes, and remove redundant lines."""
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.3, linewidth=0.6)


def looks() -> Iterator[dict[str, Any]]:
    """Yield the settings of lines that differ."""
    for colour, marker in zip(COLOURS, MARKERS, strict=True):
        yield {"color": colour, "marker": marker, "markersize": 4}


def legend_below(picture: Figure, axes: Axes) -> None:
    """Put the legend of one of the axes below all."""
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


def write(picture: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure as .svg or .png."""
    kind = path.suffix.removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    how: Any = {"format": kind, "dpi": dpi, "metadata": metadata}
    with styled():
        write_whole(path, lambda partial: picture.savefig(partial, **how))
