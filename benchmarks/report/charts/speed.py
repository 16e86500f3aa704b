"""Latency and throughput over batch sizes and lengths, of all bundles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..contents import BundleReport, Timing
from .svg import Chart, axes_of, draw, styles

SIZE = (3.4, 2.5)

Curves = dict[str, list[Timing]]
"""By the bundle's label."""


def draw_speed(bundles: Sequence[BundleReport]) -> list[Chart]:
    """Those for which there are at least two points of a bundle."""
    measured = {b.label: b.speed.timings for b in bundles if b.speed is not None}
    if not measured:
        return []
    lengths = sorted({timing.source_length for timings in measured.values() for timing in timings})
    sizes = sorted({timing.batch_size for timings in measured.values() for timing in timings})
    middle, least, most = lengths[len(lengths) // 2], sizes[0], sizes[-1]
    audio = any(bundle.speed.audio for bundle in bundles if bundle.speed is not None)
    sources = "windows of audio" if audio else f"sources of {middle} tokens"
    new = max(t.new_tokens for timings in measured.values() for t in timings)
    decoded = f", {new} new ones" if new else ""

    def at(chosen: Callable[[Timing], bool]) -> Curves:
        return {label: [t for t in ts if chosen(t)] for label, ts in measured.items()}

    of_length = at(lambda t: t.source_length == middle)
    charts = [
        _chart(
            of_length,
            name="latency-by-batch",
            x=("batch size, sources", lambda t: t.batch_size),
            y=("latency of a batch, ms", _latency),
            caption=f"Latency: median of a whole batch, bars to the 90th percentile; "
            f"{sources}{decoded}. Lower is better.",
        ),
        _chart(
            of_length,
            name="throughput-by-batch",
            x=("batch size, sources", lambda t: t.batch_size),
            y=("throughput, tokens / s", lambda t: t.tokens_per_second),
            caption=f"Throughput: {'new tokens' if new else 'tokens read'} of all rows a second; "
            f"{sources}. Higher is better.",
        ),
        _chart(
            at(lambda t: t.batch_size == least),
            name="latency-by-length",
            x=("length, tokens of the source", lambda t: t.source_length),
            y=(f"latency at batch {least}, ms", _latency),
            caption=f"Latency over the length of sources, batch {least}{decoded}. Lower is better.",
        ),
        _chart(
            at(lambda t: t.batch_size == most),
            name="throughput-by-length",
            x=("length, tokens of the source", lambda t: t.source_length),
            y=(f"throughput at batch {most}, tokens / s", lambda t: t.tokens_per_second),
            caption=f"Throughput over the length of sources, batch {most}. Higher is better.",
        ),
    ]
    several = {"batch": len(sizes) > 1, "length": len(lengths) > 1}
    kinds = ("batch", "batch", "length", "length")
    return [chart for chart, kind in zip(charts, kinds, strict=True) if several[kind]]


def _latency(timing: Timing) -> float:
    return timing.sentence.p50


def _chart(
    curves: Curves,
    *,
    name: str,
    x: tuple[str, Callable[[Timing], float]],
    y: tuple[str, Callable[[Timing], float]],
    caption: str,
) -> Chart:
    (x_name, x_of), (y_name, y_of) = x, y

    def paint(picture: Figure) -> None:
        axes = axes_of(picture, x=x_name, y=y_name)
        highest = [
            t.sentence.p90 if y_of is _latency else y_of(t) for ts in curves.values() for t in ts
        ]
        places = sorted({x_of(t) for timings in curves.values() for t in timings})
        for (label, timings), (colour, marker) in zip(curves.items(), styles(), strict=False):
            values = [y_of(t) for t in timings]
            errors: Any = None
            if y_of is _latency:
                errors = [
                    [0.0] * len(values),
                    [max(0, t.sentence.p90 - t.sentence.p50) for t in timings],
                ]
            axes.errorbar(
                [x_of(t) for t in timings],
                values,
                yerr=errors,
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.4,
                capsize=2,
                label=label,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, 1.12 * max(highest))
        if len(curves) > 1:
            axes.legend(frameon=False)

    points = (
        f"{label}: " + ", ".join(f"{y_of(t):.4g} at {x_of(t):g}" for t in timings)
        for label, timings in curves.items()
    )
    alt = f"{y_name} over {x_name}. {'; '.join(points)}"
    return draw(paint, size=SIZE, name=name, alt=alt, caption=caption)
