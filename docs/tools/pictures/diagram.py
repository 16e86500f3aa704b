"""Draws the blocks of encoder-decoder, encoder-only and decoder-only models from their modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from torch import nn

from dragoman.benchmarks.compare.picture_style import WIDTH, figure
from dragoman.reference_model import (
    EncoderModel,
    HeadConfig,
    LanguageModel,
    ModelConfig,
    Transformer,
    make_model,
)
from dragoman.reference_model.layers import Residual
from dragoman.reference_model.stacks import Decoder, Encoder

COLOURS = {
    "embedding": "#e7d9f2",
    "attention": "#f8dcc4",
    "feed": "#d3e6f7",
    "norm": "#f5efc7",
    "output": "#d6ecd8",
}
SMALL = ModelConfig(source_vocab_size=8, target_vocab_size=8, d_model=8, num_heads=2, d_ff=8)
USES = {
    "encoder-decoder\nTransformer, base": SMALL,
    "encoder-only\nBERT": SMALL.replace(
        target_vocab_size=0,
        decoder_layers=0,
        max_target_positions=0,
        encoder_layers=12,
        positions="learned",
        embedding_norm=True,
        token_types=2,
        head=HeadConfig(task="sequence-classification", labels=("",), dense_size=8),
    ),
    "decoder-only\nGPT-2": SMALL.replace(
        source_vocab_size=0,
        encoder_layers=0,
        max_source_positions=0,
        decoder_layers=12,
        positions="learned",
        norm_order="pre",
    ),
}
"""Numbers of layers are those of the published models; other sizes do not matter."""


@dataclass(frozen=True)
class Block:
    """A block of a stack in the picture.

    Attributes:
        name: name of the block in the picture
        colour: a key of `COLOURS`
        residual: number of blocks that the residual connection ending above this block skips; 0:
            none
    """

    name: str
    colour: str
    residual: int = 0


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder in the picture.

    Attributes:
        below, above: blocks below and above the layers
        layer: blocks of a layer from the bottom up
    """

    below: Sequence[Block]
    layer: Sequence[Block]
    count: int
    above: Sequence[Block]


def stack_of(stack: Encoder | Decoder) -> Stack:
    """Read the blocks of a stack in the order in which they compute."""
    embedding = stack.embedding
    parts = [name for name in ("tokens", "positions", "types") if _has(embedding, name)]
    below = [Block("embeddings:\n" + ", ".join(parts), "embedding")]
    if _has(embedding, "norm"):
        below.append(Block("norm", "norm"))
    above = [] if isinstance(stack.norm, nn.Identity) else [Block("norm", "norm")]
    layer: list[Block] = []
    for name, module in stack.layers[0].named_children():
        if isinstance(module, Residual):
            continue
        residual = getattr(stack.layers[0], f"{name}_residual")
        title = name.replace("_", "-")
        if isinstance(stack, Decoder) and name == "self_attention":
            title = f"causal {title}"
        colour, norm = "feed" if name == "feed_forward" else "attention", Block("norm", "norm")
        if residual.order == "pre":
            layer += [norm, Block(title, colour, residual=2)]
        else:
            layer += [Block(title, colour, residual=1), norm]
    return Stack(below, layer, len(stack.layers), above)


def stacks_of(config: ModelConfig) -> tuple[Stack | None, Stack | None, str]:
    """Read the encoder, the decoder and the output of a model."""
    with torch.device("meta"):
        model = make_model(config)
    match model:
        case EncoderModel():
            return stack_of(model.encoder), None, "embedding, labels,\ntokens or answer"
        case LanguageModel():
            return None, stack_of(model.decoder), "next token"
        case Transformer():
            return stack_of(model.encoder), stack_of(model.decoder), "next token"


def draw_uses() -> Figure:
    """Draw the three kinds of models side by side."""
    picture = figure(5.2, WIDTH)
    widths = [2.2 if all(stacks_of(config)[:2]) else 1.1 for config in USES.values()]
    panels = picture.subplots(1, len(USES), width_ratios=widths)
    for axes, width, (title, config) in zip(panels, widths, USES.items(), strict=True):
        axes.set(xlim=(0, width), ylim=(-0.6, 10.8), title=title)
        axes.axis("off")
        encoder, decoder, result = stacks_of(config)
        head = "head" if decoder is None else "output"
        if encoder is not None:
            top, last = _draw(axes, 0.5, encoder, "source" if decoder else "text")
            if decoder is None:
                _finish(axes, 0.5, top, head, result)
        if decoder is not None:
            centre = width - 0.6
            top, cross = _draw(axes, centre, decoder, "target so far" if encoder else "text so far")
            _finish(axes, centre, top, head, result)
            if encoder is not None:
                _bridge(axes, (0.5, last), (centre - 0.4, cross))
    return picture


def _draw(axes: Axes, x: float, stack: Stack, given: str) -> tuple[float, float]:
    """Draw a stack.

    Returns:
        the upper end, and the height of cross-attention; without it, the upper end twice
    """
    axes.text(x, -0.35, given, ha="center", va="center")
    y, cross = 0.2, 0.0
    ends = [y]
    for block in stack.below:
        y = _box(axes, x, y, block)
    bottom = y
    for block in stack.layer:
        ends.append(y)
        if block.name.startswith("cross"):
            cross = y + 0.45
        y = _box(axes, x, y, block)
        if block.residual:
            start = ends[-block.residual]
            _residual(axes, x, start - 0.12, y + 0.1)
            y += 0.4
    height = y - bottom - 0.05
    axes.add_patch(Rectangle((x - 0.45, bottom - 0.16), 0.9, height, fill=False, ec="#777", lw=0.8))
    axes.text(x + 0.48, bottom + 0.15, f"x{stack.count}", fontsize=7.5)
    y += 0.25
    for block in stack.above:
        y = _box(axes, x, y, block)
    return y, cross or y


def _box(axes: Axes, x: float, y: float, block: Block) -> float:
    """Draw a block at y with an arrow below it, and return the y of the next block."""
    height = 0.62 if block.colour == "norm" else 0.95
    _arrow(axes, (x, y - 0.22), (x, y + 0.08))
    axes.add_patch(
        FancyBboxPatch(
            (x - 0.38, y + 0.08),
            *(0.76, height - 0.14),
            boxstyle="round,pad=0,rounding_size=0.05",
            fc=COLOURS[block.colour],
            ec="#555",
            lw=0.8,
        )
    )
    size = 6.8 if block.colour == "embedding" else 7.5
    axes.text(x, y + 0.01 + height / 2, block.name, ha="center", va="center", fontsize=size)
    return y + height + 0.2


def _residual(axes: Axes, x: float, start: float, end: float) -> None:
    """Draw a residual connection around blocks, and the sum at its end."""
    axes.plot([x, x - 0.42, x - 0.42, x - 0.06], [start, start, end, end], color="#555", lw=0.8)
    axes.text(x, end, "+", ha="center", va="center", fontsize=9, bbox=_ROUND)


_ROUND = {"boxstyle": "circle,pad=0.1", "fc": "white", "ec": "#555", "lw": 0.8}


def _finish(axes: Axes, x: float, y: float, head: str, result: str) -> None:
    y = _box(axes, x, y, Block(head, "output"))
    _arrow(axes, (x, y - 0.22), (x, y + 0.12))
    axes.text(x, y + 0.2, result, ha="center", va="bottom")


def _bridge(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow from the encoder's end to the decoder's cross-attention."""
    (x, y), (right, at) = start, end
    middle = (x + 0.45 + right) / 2
    axes.plot([x, x, middle, middle], [y - 0.22, y + 0.1, y + 0.1, at], color="#555", lw=0.8)
    _arrow(axes, (middle, at), (right + 0.04, at))
    axes.text(x - 0.1, y + 0.25, "keys and values,\nonce per source", ha="center", fontsize=7.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=6, color="#555", lw=0.8)
    )


def _has(module: nn.Module, name: str) -> bool:
    return getattr(module, name, None) is not None
