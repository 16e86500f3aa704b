"""Which model is measured: the options that commands with random weights share."""

from __future__ import annotations

import click

from .shapes import SHAPES

shape_option = click.option(
    "--shape",
    type=click.Choice(list(SHAPES)),
    default="base",
    show_default=True,
    help="Of the model: base and big are those of OPUS-MT models.",
)
vocab_size_option = click.option(
    "--vocab-size",
    type=click.IntRange(min=8),
    help="Tokens that encoder and decoder share; by default 32000, or what the shape has.",
)
