"""What is reported of repeated measurements: the median with its range, ratios, who is fastest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

Name = TypeVar("Name", bound=Hashable)

Spread = tuple[float, float, float]
"""Median, lowest and highest."""


def spread(values: Sequence[float], scale: float = 1.0) -> Spread:
    """Median, lowest and highest of the values times `scale`, rounded to 3 decimals."""
    median, lowest, highest = (
        round(float(f(values)) * scale, 3) for f in (np.median, np.min, np.max)
    )
    return median, lowest, highest


def paired(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Median, lowest and highest of one's values over another's of the same rounds: a drift from
    round to round hits both alike and leaves the ratio.
    """
    return spread([value / other for value, other in zip(values, others, strict=True)])


def fastest(medians: Mapping[Name, float]) -> Name | None:
    """The name with the lowest median; None if there is none."""
    return min(medians, key=medians.__getitem__, default=None)
