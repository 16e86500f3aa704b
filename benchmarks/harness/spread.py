"""What is reported of repeated measurements: the median with its range, and who is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Spread = tuple[float, float, float]
"""Median, lowest and highest."""


def spread(values: Sequence[float], scale: float = 1.0) -> Spread:
    """Median, lowest and highest of the values times `scale`, rounded to 3 decimals."""
    median, lowest, highest = (
        round(float(f(values)) * scale, 3) for f in (np.median, np.min, np.max)
    )
    return median, lowest, highest


def fastest(medians: Mapping[str, float], prefix: str) -> str | None:
    """The contender with the lowest median among those whose name starts with `prefix`; None if
    there is none."""
    names = [name for name in medians if name.startswith(prefix)]
    return min(names, key=medians.__getitem__, default=None)
