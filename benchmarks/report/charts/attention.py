"""Attention as a heat map."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..contents import AttentionExample
from .svg import SMALL, Chart, draw

CELL = 0.22
WIDEST, PAGE, HIGHEST = 5.0, 9.4, 9.0
"""Inches: of a cell; of a picture beside another, and of one that needs the page's width."""
MOST_LABELS = 40


def draw_attention(example: AttentionExample, name: str) -> Chart:
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
    """The tokens along a side, or every n-th where there are many."""
    step = -(-len(labels) // MOST_LABELS)
    places = range(0, len(labels), step)
    set_ticks(list(places), [labels[place] for place in places], fontsize=SMALL, **options)
