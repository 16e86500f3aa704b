"""Attention as a heat map."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..contents import AttentionExample
from .svg import SMALL, Chart, draw

CELL = 0.22
"""Inches."""
MOST_LABELS = 40


def draw_attention(example: AttentionExample, name: str) -> Chart:
    weights = np.array(example.weights)
    rows, columns = weights.shape
    size = (min(4.6, max(2.6, 1.3 + CELL * columns)), min(4.6, max(1.8, 0.9 + CELL * rows)))

    def paint(picture: Figure) -> None:
        axes = picture.subplots()
        image = axes.imshow(weights, cmap="viridis", vmin=0, vmax=max(float(weights.max()), 1e-6))
        _label(axes.set_xticks, example.columns, rotation=90)
        _label(axes.set_yticks, example.rows)
        axes.set(xlabel="attended to", ylabel="attends")
        picture.colorbar(image, label="attention")

    best = [example.columns[int(i)] for i in weights.argmax(axis=1)]
    pairs = ", ".join(f"{row} to {to}" for row, to in zip(example.rows, best, strict=True))
    alt = f"Heat map of attention. Each row attends most to: {pairs}"
    return draw(paint, size=size, name=name, alt=alt, caption=f"{example.text}: {example.title}.")


def _label(set_ticks: Any, labels: tuple[str, ...], **options: Any) -> None:
    """The tokens along a side, or every n-th where there are many."""
    step = -(-len(labels) // MOST_LABELS)
    places = range(0, len(labels), step)
    set_ticks(list(places), [labels[place] for place in places], fontsize=SMALL, **options)
