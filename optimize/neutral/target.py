"""Standard operators: the graphs stay as exported, weights and activations change precision."""

from __future__ import annotations

from collections.abc import Collection

from dragoman.runtime.format.manifest import Precision

from ..precision.weight_only import WeightOnly
from ..recipe import Schemes, TargetRecipe

BLOCK = 32
"""Inputs that share a scale in 4 bits."""


def schemes(precision: Precision, graphs: Collection[str], widths: Collection[int]) -> Schemes:
    """DequantizeLinear has no 4-bit tables to look up tokens in, so embeddings have 8 bits."""
    rows = WeightOnly(8, None, error=0.05)
    products = rows if precision == "int8" else WeightOnly(4, BLOCK, error=0.2)
    return Schemes(dict.fromkeys(graphs, products), rows)


RECIPE = TargetRecipe(
    passes=lambda graph, model, precision: (),
    schemes=schemes,
    file_passes=(),
    candidates=True,
)
