"""Shapes of the models that are measured with random weights."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Shape(NamedTuple):
    """Of an encoder-decoder with as many layers in the decoder as in the encoder.

    Attributes:
        activation: of the feed-forward blocks, in Hugging Face's spelling
        family: whose checkpoint it is: its kinds of positions and norms
        vocab_size: tokens that encoder and decoder share, unless another number is asked for
        positions: of encoder and decoder
        sharpness: of attention, see `random_model`
    """

    layers: int
    d_model: int
    heads: int
    d_ff: int
    activation: str
    family: Literal["marian", "bart"] = "marian"
    vocab_size: int = 32000
    positions: int = 512
    sharpness: float = 4.0


SHAPES = {
    "tiny": Shape(layers=2, d_model=64, heads=4, d_ff=128, activation="swish"),
    "base": Shape(layers=6, d_model=512, heads=8, d_ff=2048, activation="swish"),
    "big": Shape(layers=6, d_model=1024, heads=16, d_ff=4096, activation="relu"),
    "bart-tiny": Shape(
        *(2, 64, 4, 128), activation="gelu", family="bart", vocab_size=264, sharpness=2.0
    ),
    "bart-large-cnn": Shape(
        layers=12,
        d_model=1024,
        heads=16,
        d_ff=4096,
        activation="gelu",
        family="bart",
        vocab_size=50264,
        positions=1024,
        sharpness=2.0,
    ),
}
"""base and big are those of OPUS-MT models, bart-large-cnn is that of the summarizer of this name
(406 M parameters); those called tiny are small enough for tests."""

FAMILY_NAMES = {"marian": "Marian", "bart": "BART"}


def describe(shape: str, vocab_size: int) -> str:
    """The model as records name it."""
    family = FAMILY_NAMES[SHAPES[shape].family]
    return f"{family} {shape}, vocabulary {vocab_size}, random weights"
