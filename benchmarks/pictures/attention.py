"""What the shipped model attends to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from dragoman.export import export_bundle
from dragoman.export.locating import locate_checkpoint
from dragoman.export.opened_checkpoint import open_checkpoint
from dragoman.pictures.attention import draw, heat_maps
from dragoman.runtime import Attention, load

from ..shipped import MODEL
from .style import HEAT, figure, styled

WORD = "transformer"


def attention_of(word: str = WORD) -> Attention:
    """Of the shipped model, to a word and the phonemes that it makes of it."""
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
    """As `dragoman attention` does."""
    draw(heat_maps(attention)["cross"], path, layer=None, head=None)


def draw_heads(attention: Attention) -> Figure:
    """Every head of cross-attention by itself."""
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
