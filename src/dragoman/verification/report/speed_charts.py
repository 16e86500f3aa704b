"""Draws latency and throughput of all bundles over batch sizes and lengths."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from .charts import Chart, axes_of, draw, styles
from .contents import BundleReport, Timing

SIZE = (3.4, 2.5)

Curves = dict[str, list[Timing]]
"""Timings by the bundle's label."""
Axis = tuple[str, Callable[[Timing], float]]
"""The name of an axis, and what it shows."""


def draw_speed(bundles: Sequence[BundleReport]) -> list[Chart]:
    """Draw the charts for which a bundle has at least two points.

    A length or batch size that is fixed in a chart is one that all bundles have measured.
    """
    measured = {b.label: [*b.speed.timings] for b in bundles if b.speed and b.speed.timings}
    audio = any(bundle.speed.audio for bundle in bundles if bundle.speed is not None)
    return [*_by_batch(measured, audio), *_by_length(measured)]


def _by_batch(measured: Curves, audio: bool) -> list[Chart]:
    lengths = _common(measured, lambda t: t.source_length)
    if not lengths:
        return []
    middle = lengths[len(lengths) // 2]
    curves = _at(measured, lambda t: t.source_length == middle)
    if not _any_line(curves):
        return []
    sources = "windows of audio" if audio else f"sources of {middle} tokens"
    new = _new_tokens(measured)
    size: Axis = ("batch size, sources", lambda t: t.batch_size)
    return [
        _chart(
            curves,
            name="latency-by-batch",
            x=size,
            y=("latency of a batch, ms", _latency),
            caption=f"Latency: median of a whole batch, bars to the 90th percentile; "
            f"{sources}{new}. Lower is better.",
        ),
        _chart(
            curves,
            name="throughput-by-batch",
            x=size,
            y=("throughput, tokens / s", lambda t: t.tokens_per_second),
            caption=f"Throughput: {'new tokens' if new else 'tokens read'} of all rows a second; "
            f"{sources}. Higher is better.",
        ),
    ]


def _by_length(measured: Curves) -> list[Chart]:
    sizes = _common(measured, lambda t: t.batch_size)
    if not sizes:
        return []
    least, most = sizes[0], sizes[-1]
    of_least = _at(measured, lambda t: t.batch_size == least)
    if not _any_line(of_least):
        return []
    length: Axis = ("length, tokens of the source", lambda t: t.source_length)
    return [
        _chart(
            of_least,
            name="latency-by-length",
            x=length,
            y=(f"latency at batch {least}, ms", _latency),
            caption=f"Latency over the length of sources, batch {least}"
            f"{_new_tokens(measured)}. Lower is better.",
        ),
        _chart(
            _at(measured, lambda t: t.batch_size == most),
            name="throughput-by-length",
            x=length,
            y=(f"throughput at batch {most}, tokens / s", lambda t: t.tokens_per_second),
            caption=f"Throughput over the length of sources, batch {most}. Higher is better.",
        ),
    ]


def _common(measured: Curves, of: Callable[[Timing], int]) -> list[int]:
    every = [set(map(of, timings)) for timings in measured.values()]
    return sorted(set.intersection(*every)) if every else []


def _at(measured: Curves, chosen: Callable[[Timing], bool]) -> Curves:
    return {label: [t for t in timings if chosen(t)] for label, timings in measured.items()}


def _any_line(curves: Curves) -> bool:
    return any(len(timings) > 1 for timings in curves.values())


def _new_tokens(measured: Curves) -> str:
    """Say how many tokens are decoded; empty: none."""
    new = max(timing.new_tokens for timings in measured.values() for timing in timings)
    return f", {new} new ones" if new else ""


def _latency(timing: Timing) -> float:
    return timing.sentence.p50


def _chart(curves: Curves, *, name: str, x: Axis, y: Axis, caption: str) -> Chart:
    (x_name, x_of), (y_name, y_of) = x, y

    def paint(picture: Figure) -> None:
        axes = axes_of(picture, x=x_name, y=y_name)
        highest = [
            t.sentence.p90 if y_of is _latency else y_of(t) for ts in curves.values() for t in ts
        ]
        places = sorted({x_of(t) for timings in curves.values() for t in timings})
        for (label, timings), (colour, marker) in zip(curves.items(), styles(), strict=False):
            values = list(map(y_of, timings))
            errors: Any = None
            if y_of is _latency:
                errors = [
                    [0.0] * len(values),
                    [max(0, t.sentence.p90 - t.sentence.p50) for t in timings],
                ]
            axes.errorbar(
                list(map(x_of, timings)),
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
