"""The floor: the shortest time in which a processor can do a step, whatever computes it.

A step reads everything that it needs from memory once, and does all its products; the encoder's
are shared out to the steps. What a step takes beyond its floor is what smaller products, attention
and everything between them cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..models.shapes import Shape
from .pace import Pace
from .workload import Workload


@dataclass(frozen=True)
class Floor:
    """The shortest step of a precision.

    Attributes:
        ms: of a step, with its part of the encoder's time
        reading_ms, products_ms: of a step of the decoder alone; the longer one counts
    """

    contender: str
    threads: int
    batch_size: int
    ms: float
    reading_ms: float
    products_ms: float


BYTES: dict[str, tuple[float, float]] = {"fp32": (4, 4), "int8": (1, 1), "int4": (0.5625, 1)}
"""Of a weight, scales included, and of a number in a cache of self-attention."""
COMPUTED_IN = {"fp32": "fp32", "int8": "int8", "int4": "fp32"}
"""What a decoder multiplies in."""


def floors(
    paces: Sequence[Pace],
    precisions: Mapping[str, str],
    shape: Shape,
    workload: Workload,
    vocab_size: int,
) -> list[Floor]:
    """
    Args:
        precisions: of Dragoman's contenders, by name: keys of `BYTES`
    """
    return [
        _floor(pace, contender, precision, shape, workload, vocab_size, size)
        for pace in paces
        for contender, precision in precisions.items()
        for size in workload.batch_sizes
    ]


def _floor(
    pace: Pace,
    contender: str,
    precision: str,
    shape: Shape,
    workload: Workload,
    vocab_size: int,
    batch_size: int,
) -> Floor:
    width, layers = shape.d_model, shape.layers
    rows = batch_size * workload.num_beams
    source = (workload.source_length + (workload.longest_source or workload.source_length)) / 2
    target = workload.new_tokens / 2  # caches fill up
    # A decoder's layer has two attentions, without the keys and values of the second; those are the
    # encoder's, which so has as many weights.
    of_layers = layers * (6 * width**2 + 2 * width * shape.d_ff)
    weights = of_layers + vocab_size * width
    of_weight, of_cache = BYTES[precision]
    cross, cached = (2 * layers * width * n for n in (source, target))  # numbers of a row
    read = weights * of_weight + batch_size * cross * 4 + rows * cached * of_cache
    reading = read / pace.gigabytes_per_second / 1e9
    products = rows * weights / pace.products[COMPUTED_IN[precision]] / 1e9
    products += rows * (cross + cached) / pace.products["fp32"] / 1e9
    encoder = "int8" if precision == "int4" else precision
    encoding = batch_size * source * of_layers / pace.products[encoder] / 1e9
    seconds = max(reading, products) + encoding / workload.new_tokens
    return Floor(
        contender,
        pace.threads,
        batch_size,
        *(round(1e3 * s, 3) for s in (seconds, reading, products)),
    )
