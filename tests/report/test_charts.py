"""Charts: SVG with axes and units, in the colours and fonts of the page."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from dragoman.verification.report.charts import (
    MOST_BARS,
    PAGE_COLOURS,
    Chart,
    draw_attention,
    draw_keeping,
    draw_layers,
    draw_margins,
    draw_products,
    draw_training,
)
from dragoman.verification.report.contents import AttentionExample, BundleReport
from dragoman.verification.report.speed_charts import draw_speed

from .conftest import HOSTILE, bundle_report, parity, sensitivity, timing, training

SVG = "{http://www.w3.org/2000/svg}"

BUNDLE = bundle_report()
EXAMPLE = AttentionExample("t", HOSTILE, ("$x^2$", "<b>"), ("ä", "日"), ((0.2, 0.8), (1.0, 0.0)))

CHARTS: dict[str, tuple[Callable[[], Chart], list[str]]] = {
    "margins": (
        lambda: draw_margins(parity().tokens, "m"),
        ["margin, logits", "sequences that differ", "allowed: 2.1"],
    ),
    "products": (
        lambda: draw_products(sensitivity(), "p"),
        ["error of its output, %", "by itself: mean divergence, nats"],
    ),
    "layers": (lambda: draw_layers(sensitivity(), "l"), ["mean divergence, nats"]),
    "keeping": (
        lambda: draw_keeping(sensitivity(), "k"),
        ["weights, MB", "mean divergence, nats", "0", "1"],
    ),
    "training": (
        lambda: draw_training(training().epochs, "chrF", "t"),
        ["epoch", "loss, nats per token", "validation chrF", "training", "validation", "chrF"],
    ),
    "attention": (
        lambda: draw_attention(EXAMPLE, "a"),
        ["attended to", "attends", "attention", "$x^2$", "<b>", "ä", "日"],
    ),
}


def parsed(chart: Chart) -> ET.Element:
    return ET.fromstring(chart.svg)  # noqa: S314  # our own


def texts(chart: Chart) -> list[str]:
    return [element.text or "" for element in parsed(chart).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", CHARTS)
def test_axes_have_titles_and_units(name: str) -> None:
    draw, expected = CHARTS[name]
    found = texts(draw())
    assert set(expected) <= set(found)


@pytest.mark.parametrize("name", CHARTS)
def test_colours_and_fonts_are_the_page_s(name: str) -> None:
    chart = CHARTS[name][0]()
    svg = str(chart.svg)
    assert not any(colour in svg for colour in PAGE_COLOURS)
    assert "currentColor" in svg and "font-family" not in svg and "<style" not in svg
    of_text = re.findall(r"<text style=\"[^\"]*fill: ([^;\"]+)", svg)
    assert of_text and set(of_text) <= {"currentColor", "var(--bad)"}
    root = parsed(chart)
    assert root.get("role") == "img" and len(root.get("aria-label") or "") > 15
    assert root.get("viewBox") and root.get("width") is None


def test_names_differ_between_charts() -> None:
    first, second = (draw_layers(sensitivity(), name) for name in ("one", "two"))
    ids = [re.findall(r'\bid="([^"]+)"', chart.svg) for chart in (first, second)]
    assert not set(ids[0]) & set(ids[1])
    for chart, known in zip((first, second), ids, strict=True):
        used = re.findall(r"(?:url\(|href=\")#([^)\"]+)", chart.svg)
        assert used and set(used) <= set(known)


def test_bars_are_as_long_as_the_numbers() -> None:
    """Their labels are the figures of the worst products, in order."""
    found = sensitivity()
    shown = texts(draw_products(found, "p"))
    names = [product.name for product in found.worst]
    assert [text for text in shown if text in names] == names
    bars = bar_lengths(draw_products(found, "p"))
    errors = [product.error or 0 for product in (*found.worst, found.products[-1])]
    means = [product.alone.mean for product in found.worst if product.alone is not None]
    for values, lengths in ((errors, bars[:5]), (means, bars[5:9])):
        ratios = [length / value for length, value in zip(lengths, values, strict=True)]
        assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-3)


def bar_lengths(chart: Chart) -> list[float]:
    """Sizes of rectangles in a colour of a series."""
    paths = re.findall(r'<path d="([^"]*)" [^>]*style="fill: var\(--series', chart.svg)
    corners = [[float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)] for path in paths]
    return [max(xs) - min(xs) for xs in corners]


def test_more_products_than_fit() -> None:
    chart = draw_products(sensitivity(MOST_BARS + 9), "p")
    assert f"The worst {MOST_BARS} of {MOST_BARS + 9}" in chart.caption
    assert len([text for text in texts(chart) if text.startswith("decoder.layers")]) == MOST_BARS


def test_margins_of_forbidden_tokens_are_counted_apart() -> None:
    tokens = dataclasses.replace(parity().tokens, allowed_margin=None)
    forbidden = dataclasses.replace(tokens.divergences[0], margin=1e300)
    some = dataclasses.replace(tokens, divergences=(*tokens.divergences, forbidden))
    chart = draw_margins(some, "m")
    assert "1 more chose a token that is forbidden" in chart.caption
    assert not any("e2" in text or "e3" in text for text in texts(chart))
    draw_margins(dataclasses.replace(tokens, divergences=(forbidden,)), "m")


def test_speed_has_four_curves_of_every_bundle() -> None:
    other = bundle_report("other")
    charts = draw_speed([BUNDLE, other])
    titles = [
        ("batch size, sources", "latency of a batch, ms"),
        ("batch size, sources", "throughput, tokens / s"),
        ("length, tokens of the source", "latency at batch 1, ms"),
        ("length, tokens of the source", "throughput at batch 32, tokens / s"),
    ]
    for chart, (x, y) in zip(charts, titles, strict=True):
        found = texts(chart)
        assert {x, y, "g2p-int8", "other"} <= set(found)
    assert "32" in texts(charts[0]) and "64" in texts(charts[2])


def test_speed_of_one_size_and_one_length() -> None:
    assert BUNDLE.speed is not None
    single = dataclasses.replace(BUNDLE.speed, timings=(timing(1, 8),))
    assert draw_speed([dataclasses.replace(BUNDLE, speed=single)]) == []
    assert draw_speed([dataclasses.replace(BUNDLE, speed=None)]) == []
    window = dataclasses.replace(BUNDLE.speed, timings=(timing(1, 1500), timing(4, 1500)))
    assert len(draw_speed([dataclasses.replace(BUNDLE, speed=window)])) == 2


def test_speed_of_bundles_with_other_capacities() -> None:
    """Each chart is at a length or size that all have, so that every legend has every curve."""

    def measured(label: str, *sizes: tuple[int, int]) -> BundleReport:
        assert BUNDLE.speed is not None
        speed = dataclasses.replace(BUNDLE.speed, timings=tuple(timing(b, n) for b, n in sizes))
        return dataclasses.replace(BUNDLE, label=label, speed=speed)

    small = measured("small", (1, 8), (8, 8), (1, 20), (8, 20))
    charts = draw_speed([BUNDLE, small])
    assert len(charts) == 4
    for chart in charts:
        points = re.findall(r"([\w-]+): [\d.]", parsed(chart).get("aria-label") or "")
        assert points == ["g2p-int8", "small"]
        assert {"g2p-int8", "small"} <= set(texts(chart))
    assert "sources of 8 tokens" in charts[0].caption
    assert "batch 8" in charts[3].caption
    apart = draw_speed([BUNDLE, measured("tiny", (1, 5), (8, 5))])  # of no common length
    assert [chart.caption.partition(" of")[0] for chart in apart] == [
        *("Latency over the length", "Throughput over the length")
    ]
    empty = draw_speed([BUNDLE, measured("empty")])
    assert len(empty) == 4 and not any("empty" in texts(chart) for chart in empty)
    assert draw_speed([measured("a", (1, 5)), measured("b", (1, 8))]) == []
