"""Draws formulas of the reference model."""

from __future__ import annotations

import json

import numpy as np
import torch
from matplotlib.figure import Figure

from dragoman.benchmarks.compare.picture_style import COLOURS, HEAT, figure, styled, tidy
from dragoman.reference_model import ModelConfig, pad
from dragoman.reference_model.attention import attention_weights, causal_mask
from dragoman.reference_model.layers import ACTIVATIONS
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.stacks import sinusoids
from dragoman.reference_model.training.options import cool_down, inverse_square_root

POSITIONS, SIZE = 64, 64
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
KEYS, QUERIES = 32, 2000
PAPER = (512, 4000, 100_000)
"""d_model and steps of warming up and of training, sections 5.2 and 5.3, base model."""
SHIPPED = "g2p-en"


def draw_positions() -> Figure:
    """Draw sinusoidal positions as a heat map, and their pairwise similarities."""
    table = sinusoids(POSITIONS, SIZE)
    with styled():
        picture = figure(3.0)
        left, right = picture.subplots(1, 2, width_ratios=(1.3, 1))
        image = left.imshow(
            table.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="none"
        )
        tidy(left, title="table", x="component", y="position", grid=False)
        picture.colorbar(image, ax=left)
        image = right.imshow(
            (table @ table.T / (SIZE / 2)).numpy(), cmap=HEAT, aspect="auto", interpolation="none"
        )
        tidy(right, title="cosine of two positions", x="position", y="position", grid=False)
        picture.colorbar(image, ax=right)
    return picture


def draw_scaling() -> Figure:
    """Draw the scores of random queries and keys, scaled and not."""
    spread: dict[str, list[float]] = {"not scaled": [], "scaled": []}
    largest: dict[str, list[float]] = {"not scaled": [], "scaled": []}
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        query = torch.randn(QUERIES, 1, size, generator=generator)
        key = torch.randn(QUERIES, KEYS, size, generator=generator)
        for name, scale in (("not scaled", 1.0), ("scaled", None)):
            factor = size**-0.5 if scale is None else scale
            spread[name].append(float((query @ key.mT * factor).std()))
            weights = attention_weights(query, key, None, scale)
            largest[name].append(float(weights.amax(-1).mean()))
    with styled():
        picture = figure(2.7)
        left, right = picture.subplots(1, 2)
        for axes, values, title in (
            (left, spread, "standard deviation of scores"),
            (right, largest, f"largest weight among {KEYS} keys, mean"),
        ):
            for colour, (name, line) in zip(COLOURS, values.items(), strict=False):
                axes.plot(SIZES, line, color=colour, marker="o", markersize=3, label=name)
            axes.set_xscale("log", base=2)
            tidy(axes, title=title, x="d_k", y="")
        left.set_yscale("log", base=2)
        right.set_ylim(0, 1)
        left.legend(frameon=False)
    return picture


def draw_masks() -> Figure:
    """Draw the attention masks."""
    _, tokens = pad([[1] * 8, [1] * 5], 0)
    padding = tokens[1].expand(8, 8)
    causal = causal_mask(torch.zeros(1, dtype=torch.long), 8, 8)[0, 0]
    step = causal_mask(torch.tensor([5]), 1, 8)[0, 0]
    with styled():
        picture = figure(2.6)
        panels = picture.subplots(1, 3)
        for axes, mask, title in zip(
            panels,
            (padding, causal, step),
            (
                "padding: a source of 5 tokens",
                "causal: a whole target",
                "causal: a step at position 5",
            ),
            strict=True,
        ):
            axes.imshow(mask.numpy(), cmap="Blues", vmin=0, vmax=1.4)
            tidy(axes, title=title, x="key", y="query", grid=False)
            axes.set_xticks(range(8))
            first = 5 if len(mask) == 1 else 0
            axes.set_yticks(range(len(mask)), range(first, first + len(mask)))
            edges = np.arange(9) - 0.5
            axes.vlines(edges, -0.5, len(mask) - 0.5, color="white", lw=1)
            axes.hlines(edges[: len(mask) + 1], -0.5, 7.5, color="white", lw=1)
    return picture


def draw_activations() -> Figure:
    """Draw the activations of feed-forward blocks."""
    x = torch.linspace(-4, 4, 161)
    with styled():
        picture = figure(2.7, 4.6)
        axes = picture.subplots()
        styles = ("-", "-", "--", ":", "-", "-")
        for colour, style, (name, function) in zip(
            COLOURS, styles, ACTIVATIONS.items(), strict=True
        ):
            axes.plot(x.numpy(), function(x).numpy(), color=colour, linestyle=style, label=name)
        axes.set_ylim(-1.2, 3)
        tidy(axes, x="x", y="activation(x)")
        axes.legend(frameon=False)
    return picture


def draw_learning_rate() -> Figure:
    """Draw the learning rates of the paper and of the shipped model."""
    d_model, warmup, steps = PAPER
    directory = find_checkpoint(SHIPPED)
    own = ModelConfig.from_json((directory / "config.json").read_text(encoding="utf-8"))
    training = json.loads((directory / "recipe.json").read_text(encoding="utf-8"))["training"]
    epochs, cooling = training["epochs"], training["cool_down_epochs"]
    with styled():
        picture = figure(2.6)
        left, right = picture.subplots(1, 2)
        x = range(1, steps, 100)
        left.plot(x, [inverse_square_root(s, d_model=d_model, warmup_steps=warmup) for s in x])
        tidy(left, title="the paper's base model", x="step", y="learning rate")
        done = np.linspace(0, epochs, 400)[1:]
        rates = [
            inverse_square_root(
                max(1, round(epoch / epochs * training["steps"])),
                d_model=own.d_model,
                warmup_steps=training["warmup_steps"],
            )
            for epoch in done
        ]
        factors = [cool_down(epoch, epochs=epochs, cool_down_epochs=cooling) for epoch in done]
        right.plot(done, rates, color=COLOURS[5], linestyle="--", label="without cool-down")
        right.plot(done, np.multiply(rates, factors), color=COLOURS[0], label="with cool-down")
        tidy(right, title=SHIPPED, x="epoch", y="learning rate")
        right.legend(frameon=False)
    return picture
