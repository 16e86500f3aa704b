"""Matplotlib's figures as SVG inside a page: in its fonts, and in its colours, light or dark."""

from __future__ import annotations

import html
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..figures import figure

INK, FAINT, BAD = "#010101", "#010102", "#010103"
SERIES = ("#020201", "#020202", "#020203", "#020204", "#020205", "#020206")
"""Colours that stand for those of the page. Matplotlib writes them as they are."""
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Of series, so that they can be told apart without colour."""
PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    BAD: "var(--bad)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(SERIES, start=1)},
}
PIXELS = 4 / 3
"""Of CSS, per point."""
SMALL = 7.5
"""Points, of text."""
SETTINGS: Any = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    **dict.fromkeys(
        ("font.size", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize"),
        SMALL + 0.5,
    ),
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "dragoman",  # names of elements do not change from run to run
    "text.parse_math": False,  # a token may be a dollar
}


@dataclass(frozen=True)
class Chart:
    """
    Attributes:
        svg: the picture
        caption: below it
        wide: whether it needs the width of the page, and scrolls where there is less
    """

    svg: Markup
    caption: str
    wide: bool = False


def draw(
    paint: Callable[[Figure], None],
    *,
    size: tuple[float, float],
    name: str,
    alt: str,
    caption: str,
    wide: bool = False,
) -> Chart:
    """Let `paint` draw on an empty figure.

    Args:
        size: width and height in inches
        name: of the picture within the page, which no other one has
        alt: the picture in words
    """
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # The page is drawn with the fonts of whoever reads it.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        picture = Figure(figsize=size, layout="constrained")
        paint(picture)
        written = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.savefig(written, format="svg", transparent=True, metadata=metadata)
    return Chart(_for_page(written.getvalue(), name, alt), caption, wide)


def axes_of(picture: Figure, *, x: str, y: str) -> Axes:
    """The only axes of a figure, with a title and a unit for each side."""
    axes = picture.subplots()
    tidy(axes, x=x, y=y)
    return axes


def tidy(axes: Axes, *, x: str, y: str, grid: str = "y") -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


@FuncFormatter
def small_numbers(value: float, place: int | None = None) -> str:
    """Of ticks: no common factor stands apart from them."""
    return figure(value) if value else "0"


def styles() -> Iterator[tuple[str, str]]:
    """A colour and a marker for each series; colours repeat after six."""
    return zip(itertools.cycle(SERIES), itertools.cycle(MARKERS), strict=False)


def _for_page(svg: str, name: str, alt: str) -> Markup:
    """An SVG file as an element of a page: without what a file begins with, with names that are its
    own, colours of the page and a width that may shrink.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for colour, of_page in PAGE_COLOURS.items():
        svg = svg.replace(colour, of_page)
    width = re.search(r'width="([\d.]+)pt"', svg)
    assert width is not None
    label = html.escape(alt)
    opening = f'<svg class="chart" role="img" aria-label="{label}" '
    opening += f'style="width: {float(width[1]) * PIXELS:.0f}px" '
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return Markup(svg.replace("<svg ", opening, 1))  # noqa: S704  # matplotlib escapes texts
