"""Where a precision hurts, as bars, and what keeping the worst products in fp32 gives."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...sensitivity.results import Sensitivity
from ..figures import figure
from .svg import FAINT, INK, SERIES, SMALL, Chart, axes_of, draw, small_numbers, tidy

ROW = 0.17
"""Inches, of a bar."""
MOST_BARS = 48
"""More are in the table only."""


def draw_products(found: Sensitivity, name: str) -> Chart:
    """The error of each product's output, and what it alone does to predictions; the worst first.
    Products that are not quantized have an error only, and come last.
    """
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
            [_share(product.error) for product in shown],
            SERIES[0],
        )
        tidy(errors, x="error of its output, %", y="", grid="x")
        _bars(
            effects,
            names,
            [0.0 if product.alone is None else product.alone.mean for product in shown],
            ["kept" if p.alone is None else f"{figure(p.alone.mean)}" for p in shown],
            SERIES[1],
        )
        tidy(effects, x=f"it alone: mean {_unit(found)}", y="", grid="x")
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
    """In the order of computation."""
    layers = found.layers

    def paint(picture: Figure) -> None:
        axes = picture.subplots()
        means = [layer.alone.mean for layer in layers]
        labels = [f"{figure(mean)}" for mean in means]
        _bars(axes, [layer.name for layer in layers], means, labels, SERIES[1])
        tidy(axes, x=f"mean {_unit(found)}", y="", grid="x")
        axes.xaxis.set_major_formatter(small_numbers)
        axes.invert_yaxis()

    alt = "; ".join(f"{layer.name}: {figure(layer.alone.mean)}" for layer in layers)
    caption = f"Every layer in {found.precision} by itself, everything else in fp32."
    size = (3.7, 0.75 + 1.2 * ROW * len(layers))
    return draw(paint, size=size, name=name, alt=f"Bars of layers. {alt}", caption=caption)


def draw_keeping(found: Sensitivity, name: str) -> Chart:
    """But for the last step, in which nothing is left to hurt."""
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

    caption = "The worst products kept in fp32, as many as the numbers say, all others not."
    alt = "; ".join(f"{s.count} kept: {figure(s.effect.mean)}" for s in steps)
    return draw(paint, size=(3.3, 2.6), name=name, alt=f"{caption} {alt}", caption=caption)


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], labels: Sequence[str], colour: str
) -> None:
    bars = axes.barh(range(len(names)), values, color=colour, height=0.7)
    axes.bar_label(bars, labels, padding=2, fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.margins(x=0.18, y=0.01)
    axes.tick_params(axis="y", length=0, color=FAINT)


def _share(error: float | None) -> str:
    return "not measurable" if error is None else f"{100 * error:.2g}"


def _unit(found: Sensitivity) -> str:
    return "divergence, nats" if found.measure == "divergence" else "1 - cosine"
