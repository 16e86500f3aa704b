"""Draws the pictures of the page of figures from the stored records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dragoman.benchmarks.compare.picture_style import COLOURS, figure, styled, tidy

RESULTS = Path(__file__).parents[3] / "benchmarks/results"
OURS, OTHER = COLOURS[0], COLOURS[5]
PRECISIONS = {"fp32": COLOURS[0], "int8": COLOURS[2], "int4": COLOURS[4]}
SIZES = (1, 8, 32)

Record = dict[str, Any]


def record(name: str) -> Record:
    """Read a record of `benchmarks/results`."""
    found: Record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def draw_quality() -> Figure:
    """Draw BLEU of greedy and beam search in each precision, and published figures."""
    with styled():
        picture = figure(2.4)
        axes = picture.subplots()
        shipped, captions = record("translation-bible-en-es"), record("translation-multi30k-en-de")
        rows = [("bible-en-es, held-out verses", shipped, "held out")]
        rows += [
            (f"multi30k-en-de, {name}", captions, test)
            for name, test in (("test 2016", "test_2016_flickr"), ("test 2017", "test_2017_flickr"))
        ]
        groups = [
            (f"{label}, {'greedy' if beams == 1 else f'{beams} beams'}", found)
            for label, source, test in rows
            for beams in sorted({f["beams"] for f in source["figures"] if f["test"] == test})
            for found in [
                [f for f in source["figures"] if (f["test"], f["beams"]) == (test, beams)]
            ]
        ]
        for place, (_, found) in enumerate(reversed(groups)):
            for each in found:
                axes.scatter(
                    _bleu(each),
                    place,
                    color=PRECISIONS[each["precision"]],
                    label=each["precision"],
                    s=26,
                    zorder=3,
                )
                if each["published"] is not None:
                    axes.scatter(
                        each["published"],
                        place,
                        marker="|",
                        s=140,
                        color="black",
                        label="published",
                    )
        axes.set_yticks(range(len(groups)), [label for label, _ in reversed(groups)])
        tidy(axes, x="BLEU", y="")
        _legend_once(picture, axes)
    return picture


def _bleu(figure: Record) -> float:
    """Return BLEU of tokens, as in published figures, if computed, else BLEU of texts."""
    scores = figure["scores"]
    return float(scores["bleu_of_tokens"] or scores["bleu"])


def draw_latency() -> Figure:
    """Draw the speed of each tool at 1, 8 and 32 sources, relative to the best other tool."""
    best: dict[tuple[str, int], float] = {}
    for row in record("cpu-base-1-2-threads")["measurements"]:
        key = row["contender"], row["batch_size"]
        best[key] = max(best.get(key, 0.0), row["ratio"])
    tools = list(dict.fromkeys(tool for tool, _ in best))
    tools.sort(key=lambda tool: best[tool, 1])
    with styled():
        picture = figure(3.6)
        columns = picture.subplots(1, len(SIZES), sharey=True)
        for axes, size in zip(columns, SIZES, strict=True):
            _bars(axes, tools, [best.get((tool, size), 0.0) for tool in tools], "{:.2f}x")
            axes.axvline(1, color="black", linewidth=0.8)
            title = f"{size} source{'s' * (size > 1)}"
            tidy(axes, title=title, x="relative to the best other tool", y="")
    return picture


def draw_throughput() -> Figure:
    """Draw tokens per second of each tool with its best workers, threads and batches."""
    tools = sorted(
        record("throughput-base-2-cores")["tools"], key=lambda t: float(t["tokens_per_second"][0])
    )
    with styled():
        picture = figure(2.4)
        axes = picture.subplots()
        values = [t["tokens_per_second"][0] for t in tools]
        _bars(axes, [t["tool"] for t in tools], values, "{:,.0f}")
        tidy(axes, x="tokens per second, 500 sentences of 5 to 60 tokens", y="")
    return picture


def draw_serving() -> Figure:
    """Draw the requests per second that each server answers within the latency limit."""
    best: dict[str, float] = {}
    for entry in record("serving-base-2-cores")["entries"]:
        best[entry["tool"]] = max(best.get(entry["tool"], 0.0), entry["own"] or 0.0)
    tools = sorted(best, key=lambda tool: best[tool])
    with styled():
        picture = figure(1.9)
        axes = picture.subplots()
        _bars(axes, tools, [best[tool] for tool in tools], "{:.0f}")
        tidy(axes, x="requests per second with p95 at most four times that of a lone request", y="")
    return picture


def _bars(axes: Axes, names: list[str], values: list[float], text: str) -> None:
    """Draw horizontal bars, Dragoman's in another colour, with their values."""
    colours = [OURS if name.startswith("Dragoman") else OTHER for name in names]
    bars = axes.barh(names, values, color=colours, height=0.7)
    axes.bar_label(bars, [text.format(value) for value in values], padding=2, fontsize=7)
    axes.set_xlim(0, 1.18 * max(values))


def _legend_once(picture: Figure, axes: Axes) -> None:
    """Show each label of an axis once."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    picture.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
    )
