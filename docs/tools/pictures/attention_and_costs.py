"""Draws the attention of the shipped model, and the costs of the parts of a model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.tools.costs.counting import Part, encoder, step, total
from docs.tools.costs.report import CostRecord, Series, bytes_read, series
from dragoman.benchmarks.compare.picture_style import COLOURS, HEAT, figure, styled, tidy
from dragoman.benchmarks.models.bundles import MODEL
from dragoman.export import export_bundle
from dragoman.export.checkpoints import open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.pictures import draw, heat_maps
from dragoman.runtime import Attention, load

WORD = "transformer"


def attention_of(word: str = WORD) -> Attention:
    """Compute the attention of the shipped model on a word and its phonemes."""
    checkpoint = open_checkpoint(locate_checkpoint(MODEL))
    with tempfile.TemporaryDirectory(prefix="dragoman-pictures-") as directory:
        export_bundle(
            checkpoint.model,
            Path(directory),
            name=MODEL,
            tokenizers=checkpoint.tokenizers,
            attention=True,
        )
        with load(directory, threads=1) as model:
            return model.attention(word)


def draw_mean(attention: Attention, path: Path) -> None:
    """Draw the mean of all heads as `dragoman attention` does."""
    draw(heat_maps(attention)["cross"], path, layer=None, head=None)


def draw_heads(attention: Attention) -> Figure:
    """Draw every head of cross-attention."""
    weights = heat_maps(attention)["cross"].weights
    layers, heads = weights.shape[:2]
    with styled():
        picture = figure(1.7 * layers)
        panels = picture.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
        for layer in range(layers):
            for head in range(heads):
                axes = panels[layer, head]
                image = axes.imshow(weights[layer, head], cmap=HEAT, vmin=0, vmax=1)
                axes.set_title(f"layer {layer}, head {head}")
                axes.set_xticks(range(len(attention.source)), attention.source, rotation=90)
                axes.set_yticks(range(len(attention.target)), attention.target)
                axes.tick_params(labelsize=6, length=1.5)
        picture.colorbar(image, ax=panels, label="attention", shrink=0.7, pad=0.01)
    return picture


RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "costs-base-1-threads.json"
LENGTHS = np.unique(np.geomspace(16, 4096, 40).astype(int)).tolist()
ROWS = (1, 8, 32)
COLOUR: dict[Part, str] = {
    "projections": COLOURS[0],
    "feed-forward": COLOURS[1],
    "self-attention": COLOURS[2],
    "cross-attention": COLOURS[3],
    "cross keys and values": COLOURS[4],
    "output": "#c44e6a",
    "the rest": COLOURS[5],
}


def draw_encoder(record: CostRecord) -> Figure:
    """Draw the parts' shares of operations and of time as sources grow longer."""
    with styled():
        picture = figure(3.1)
        left, right = picture.subplots(1, 2)
        counted = [encoder(record.config, length) for length in LENGTHS]
        parts = [cost.part for cost in counted[0]]
        sums = [total(costs).operations for costs in counted]
        shares = [
            [costs[index].operations / whole for costs, whole in zip(counted, sums, strict=True)]
            for index in range(len(parts))
        ]
        left.stackplot(LENGTHS, shares, colors=[COLOUR[part] for part in parts])
        left.set_xscale("log", base=2)
        left.set_xlim(LENGTHS[0], LENGTHS[-1])
        left.set_ylim(0, 1)
        _bars(right, series(record)[0], share=True)
        for axes, title, what in (
            (left, "counted", "share of multiply-accumulates"),
            (right, "measured", "share of the time"),
        ):
            tidy(axes, title=title, x="tokens of the source", y=what, grid=False)
        _legend(picture, right)
    return picture


def draw_step(record: CostRecord) -> Figure:
    """Draw the bytes that a step reads, and its time, over target lengths and rows."""
    with styled():
        picture = figure(3.1)
        left, middle, right = picture.subplots(1, 3, width_ratios=(1.2, 1.2, 0.8))
        for colour, rows in zip(COLOURS, ROWS, strict=False):
            costs = [total(step(record.config, n, n, rows=rows)) for n in LENGTHS]
            megabytes = [bytes_read(cost) / rows / 1e6 for cost in costs]
            left.plot(LENGTHS, megabytes, color=colour, label=f"rows: {rows}")
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        left.legend(frameon=False)
        tidy(left, title="counted, fp32", x="tokens of source and target", y="MB read for each row")
        _, _, by_position, by_rows = series(record)
        _bars(middle, by_position)
        tidy(middle, title="measured, 1 row", x="position", y="ms", grid=False)
        _bars(right, by_rows, each_row=True)
        tidy(right, title="measured", x="rows", y="ms for each row", grid=False)
        _legend(picture, right)
    return picture


def _bars(axes: Axes, chosen: Series, *, share: bool = False, each_row: bool = False) -> None:
    """Draw stacked bars of the times of parts."""
    measured = chosen.measured
    names = [f"{vars(m)[chosen.varies]}" for m in measured]
    below = np.zeros(len(measured))
    for part, colour in COLOUR.items():
        times = np.array([m.ms.get(part, 0.0) for m in measured])
        if not times.any():
            continue
        if share:
            times /= [m.milliseconds for m in measured]
        if each_row:
            times /= [m.rows for m in measured]
        axes.bar(names, times, bottom=below, color=colour, label=part, width=0.8)
        below += times
    axes.set_xlim(-0.6, len(names) - 0.4)


def _legend(picture: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
