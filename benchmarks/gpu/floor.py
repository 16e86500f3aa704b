"""The floor: the shortest time in which a GPU can do a decoding step, by memory bandwidth alone."""

from __future__ import annotations

import re
from typing import Any

from ..models.shapes import SHAPES

SOURCE_LENGTH, NEW_TOKENS = 32, 64
"""The defaults of `compare`, by which `time_split` measures."""

BYTES_OF: dict[str, tuple[float, float]] = {
    "fp32": (4.0, 4.0),
    "fp16": (2.0, 2.0),
    "bf16": (2.0, 2.0),
    "float16": (2.0, 2.0),
    "CUDA int8": (1.0, 4.0),
    "CUDA int4": (0.5625, 4.0),
    "int8": (1.0, 2.0),
    "int4": (0.5625, 2.0),
}
"""Bytes of a weight and of an activation, by the first key that a contender's name contains; those
of an int4 weight include its scale."""


def shortest_step(
    device: dict[str, Any],
    shape: str,
    contender: str,
    batch: int,
    *,
    source_length: float = SOURCE_LENGTH,
    new_tokens: int = NEW_TOKENS,
) -> float:
    """Milliseconds of a decoding step that reads everything it needs once, at the device's memory
    bandwidth, in one launch.

    It reads the decoder's weights, the projection to the vocabulary, the cross-attention keys and
    values, and on average half of the self-attention caches, which fill up during decoding.

    Args:
        device: as `environment` writes it
        shape: as `compare` records it, such as "Marian big, vocabulary 32000, random weights"
        source_length: of the mean source

    Returns:
        0 if the device, the shape or the precision is unknown
    """
    formats = [sizes for name, sizes in BYTES_OF.items() if name in contender]
    sizes = next((s for name, s in SHAPES.items() if f" {name}," in shape), None)
    vocabulary = re.search(r"vocabulary (\d+)", shape)
    if "gigabytes_per_second" not in device or not formats or sizes is None or vocabulary is None:
        return 0.0
    weight, activation = formats[0]
    width, layers = sizes.d_model, sizes.layers
    weights = layers * (6 * width**2 + 2 * width * sizes.d_ff) + int(vocabulary[1]) * width
    positions = source_length + new_tokens / 2
    caches = batch * layers * 2 * positions * width
    reading = (weights * weight + caches * activation) / device["gigabytes_per_second"] / 1e6
    return float(reading + device["microseconds_per_launch"] / 1e3)


def with_floor(row: dict[str, Any], device: dict[str, Any]) -> dict[str, Any]:
    """A row of `time_split` with the floor of its step and the kernels' time above it; "" where
    either is unknown.
    """
    floor = shortest_step(device, row["shape"], row["contender"], row["batch"])
    known = floor and row["kernels"] != ""
    return {
        **row,
        "floor": round(floor, 4) if floor else "",
        "kernels beyond the floor": round(row["kernels"] - floor, 4) if known else "",
    }
