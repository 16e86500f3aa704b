"""Draws the charts of a report, except those of speed."""

from __future__ import annotations

import html
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dragoman.reference_model.training.history import Epoch
from dragoman.runtime.format.parity import TokenParity
from dragoman.verification.sensitivity import Sensitivity

from ..parity_rows import figure
from .contents import AttentionExample, counted

INK, FAINT, BAD = "#010101", "#010102", "#010103"
SERIES = ("#020201", "#020202", "#020203", "#020204", "#020205", "#020206")
"""Placeholders for colours of the page. Matplotlib writes them unchanged."""
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of series, which can be told apart without colour."""
PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    BAD: "var(--bad)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(SERIES, start=1)},
}
PIXELS = 4 / 3
"""CSS pixels per point."""
SMALL = 7.5
"""Points of small text."""
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
    """A chart of the page."""

    svg: Markup
    caption: str
    wide: bool = False
    """Whether it needs the width of the page, and scrolls where there is less."""


def draw(
    paint: Callable[[Figure], None],
    *,
    size: tuple[float, float],
    name: str,
    alt: str,
    caption: str,
    wide: bool = False,
) -> Chart:
    """Draw a chart by letting `paint` draw on an empty figure.

    Args:
        size: width and height in inches
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
    """Add the only axes of a figure, with a title and a unit for each side."""
    axes = picture.subplots()
    tidy(axes, x=x, y=y)
    return axes


def tidy(axes: Axes, *, x: str, y: str, grid: str = "y") -> None:
    """Name the sides of axes, and leave out what is not needed to read them."""
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


@FuncFormatter
def small_numbers(value: float, place: int | None = None) -> str:
    """Format the number of a tick without a common factor."""
    return figure(value) if value else "0"


def styles() -> Iterator[tuple[str, str]]:
    """Generate a colour and a marker for each series; colours repeat after six."""
    return zip(itertools.cycle(SERIES), itertools.cycle(MARKERS), strict=False)


def _for_page(svg: str, name: str, alt: str) -> Markup:
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


CELL = 0.22
WIDEST, PAGE, HIGHEST = 5.0, 9.4, 9.0
"""Inches: of a picture next to another, of one that needs the page's width, and the most height."""
MOST_LABELS = 40


def draw_attention(example: AttentionExample, name: str) -> Chart:
    """Draw attention as a heat map."""
    weights = np.array(example.weights)
    rows, columns = weights.shape
    wide = 1.3 + CELL * columns > WIDEST
    height = min(HIGHEST, max(1.8, 0.9 + CELL * rows))
    size = (PAGE if wide else max(2.6, 1.3 + CELL * columns), height)

    def paint(picture: Figure) -> None:
        axes = picture.subplots()
        image = axes.imshow(
            weights,
            aspect="auto" if wide or height == HIGHEST else "equal",
            cmap="viridis",
            vmin=0,
            vmax=max(float(weights.max()), 1e-6),
        )
        _label(axes.set_xticks, example.columns, rotation=90)
        _label(axes.set_yticks, example.rows)
        unit = f", {example.unit}" if example.unit else ""
        axes.set(xlabel=f"attended to{unit}", ylabel="attends")
        picture.colorbar(image, label="attention")

    best = [example.columns[int(i)] for i in weights.argmax(axis=1)]
    pairs = ", ".join(f"{row} to {to}" for row, to in zip(example.rows, best, strict=True))
    alt = f"Heat map of attention. Each row attends most to: {pairs}"
    caption = f"{example.text}: {example.title}."
    return draw(paint, size=size, name=name, alt=alt, caption=caption, wide=wide)


def _label(set_ticks: Any, labels: tuple[str, ...], **options: Any) -> None:
    step = -(-len(labels) // MOST_LABELS)
    places = range(0, len(labels), step)
    set_ticks(list(places), [labels[place] for place in places], fontsize=SMALL, **options)


MOST_BINS = 20


def draw_margins(tokens: TokenParity, name: str) -> Chart:
    """Draw a histogram of the oracle's margins where outputs differ."""
    margins, explained = np.array([d.margin for d in tokens.divergences]), tokens.allowed_margin
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


ROW = 0.17
"""Inches of a bar."""
MOST_BARS = 48
"""The most bars; more products are in the table only."""


def draw_products(found: Sensitivity, name: str) -> Chart:
    """Draw the error of each product's output, and its effect on predictions, the worst first."""
    worst = found.worst
    left = [product for product in found.products if product.alone is None]
    shown = [*worst, *left][:MOST_BARS]
    names = [product.name for product in shown]

    def paint(picture: Figure) -> None:
        errors, effects = picture.subplots(1, 2, sharey=True)
        _bars(
            errors,
            names,
            [100 * (product.error or 0) for product in shown],
            [
                "not measurable" if product.error is None else f"{100 * product.error:.2g}"
                for product in shown
            ],
            SERIES[0],
            "error of its output, %",
        )
        _bars(
            effects,
            names,
            [0.0 if product.alone is None else product.alone.mean for product in shown],
            ["kept" if p.alone is None else figure(p.alone.mean) for p in shown],
            SERIES[1],
            f"by itself: mean {_unit(found)}",
        )
        effects.xaxis.set_major_formatter(small_numbers)
        errors.invert_yaxis()

    caption = f"Every product in {found.precision} by itself, everything else in fp32."
    if len(shown) < len(found.products):
        caption += f" The worst {len(shown)} of {len(found.products)}; the table has all."
    first = shown[0] if shown else None
    alt = f"Bars of {len(shown)} products"
    if first is not None and first.alone is not None:
        alt += f"; the worst is {first.name} with {figure(first.alone.mean)}"
    size = (9.4, 0.75 + ROW * len(shown))
    return draw(paint, size=size, name=name, alt=alt, caption=caption, wide=True)


def draw_layers(found: Sensitivity, name: str) -> Chart:
    """Draw the effect of each layer, in the order of computation."""
    layers = found.layers

    def paint(picture: Figure) -> None:
        axes = picture.subplots()
        means = [layer.alone.mean for layer in layers]
        names = [layer.name for layer in layers]
        _bars(axes, names, means, list(map(figure, means)), SERIES[1], f"mean {_unit(found)}")
        axes.xaxis.set_major_formatter(small_numbers)
        axes.invert_yaxis()

    alt = "; ".join(f"{layer.name}: {figure(layer.alone.mean)}" for layer in layers)
    caption = f"Every layer in {found.precision} by itself, everything else in fp32."
    size = (3.7, 0.75 + 1.2 * ROW * len(layers))
    return draw(paint, size=size, name=name, alt=f"Bars of layers. {alt}", caption=caption)


def draw_keeping(found: Sensitivity, name: str) -> Chart:
    """Draw the gain of keeping products in fp32, without the last step, which keeps all."""
    steps = found.keeping[:-1] or found.keeping

    def paint(picture: Figure) -> None:
        axes = axes_of(picture, x="weights, MB", y=f"mean {_unit(found)}")
        sizes = [step.weight_bytes / 1e6 for step in steps]
        means = [step.effect.mean for step in steps]
        axes.plot(sizes, means, color=SERIES[1], marker="o", markersize=4, linewidth=1.4)
        for step, size, mean in zip(steps, sizes, means, strict=True):
            axes.annotate(
                f"{step.count}",
                (size, mean),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=SMALL,
                color=INK,
            )
        axes.set_ylim(0, 1.12 * max(means) or None)
        axes.yaxis.set_major_formatter(small_numbers)
        axes.margins(x=0.08)

    caption = "The worst products kept in fp32; the numbers say how many."
    alt = "; ".join(f"{s.count} kept: {figure(s.effect.mean)}" for s in steps)
    return draw(paint, size=(3.3, 2.6), name=name, alt=f"{caption} {alt}", caption=caption)


def draw_training(epochs: Sequence[Epoch], metric: str, name: str) -> Chart:
    """Draw the losses and the metric of each epoch of a training."""

    def paint(picture: Figure) -> None:
        axes = axes_of(picture, x="epoch", y="loss, nats per token")
        x = [epoch.epoch for epoch in epochs]
        lines = axes.plot(x, [epoch.loss for epoch in epochs], color=SERIES[0], label="training")
        losses = [epoch.validation_loss for epoch in epochs]
        lines += axes.plot(x, losses, color=SERIES[1], linestyle="--", label="validation")
        others = axes.twinx()
        tidy(others, x="", y=f"validation {metric}", grid="")
        others.spines["right"].set_visible(True)
        figures = [epoch.metric for epoch in epochs]
        lines += others.plot(x, figures, color=SERIES[2], linestyle=":", label=metric)
        axes.legend(handles=lines, frameon=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    last = epochs[-1]
    caption = "The losses and the metric of each epoch; the training loss has label smoothing."
    alt = (
        f"epoch {last.epoch}: loss {figure(last.loss, 3)}, validation loss "
        f"{figure(last.validation_loss, 3)}, {metric} {figure(last.metric, 3)}"
    )
    return draw(paint, size=(5.0, 2.6), name=name, alt=f"{caption} {alt}", caption=caption)


def _bars(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    colour: str,
    what: str,
) -> None:
    bars = axes.barh(range(len(names)), values, color=colour, height=0.7)
    axes.bar_label(bars, labels, padding=2, fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.margins(x=0.18, y=0.01)
    axes.tick_params(axis="y", length=0, color=FAINT)
    tidy(axes, x=what, y="", grid="x")


def _unit(found: Sensitivity) -> str:
    return "divergence, nats" if found.measure == "divergence" else "1 - cosine"
