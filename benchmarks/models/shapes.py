"""Shapes of the models that are measured with random weights."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Of an encoder-decoder with as many layers in the decoder as in the encoder.

    Attributes:
        activation: of the feed-forward blocks, in Marian's spelling
    """

    layers: int
    d_model: int
    heads: int
    d_ff: int
    activation: str


SHAPES = {
    "tiny": Shape(layers=2, d_model=64, heads=4, d_ff=128, activation="swish"),
    "base": Shape(layers=6, d_model=512, heads=8, d_ff=2048, activation="swish"),
    "big": Shape(layers=6, d_model=1024, heads=16, d_ff=4096, activation="relu"),
}
"""base and big are those of OPUS-MT models; tiny is small enough for tests."""


def describe(shape: str, vocab_size: int) -> str:
    """The model as records name it."""
    return f"Marian {shape}, vocabulary {vocab_size}, random weights"
