"""The paired bootstrap test for the difference between two outputs.

The test is that of "Statistical Significance Tests for Machine Translation Evaluation" (Koehn 2004)
with the shift of "On Some Pitfalls in Automatic Evaluation and Significance Testing for MT"
(Riezler and Maxwell 2005). Implementation and seed are those of `sacrebleu`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
SEED = 12345


def chance(oracle: NDArray[np.float64], bundle: NDArray[np.float64]) -> float:
    """Compute the p-value of a difference between two ratios of sums over segments.

    Args:
        oracle, bundle: numerators and denominators [N, 2] of the same segments
    """
    observed = abs(ratio(oracle.sum(0)) - ratio(bundle.sum(0)))
    if len(oracle) == 1 or observed == 0:
        return 1.0
    generator = np.random.default_rng(SEED)
    apart = np.empty(RESAMPLES)
    for n in range(RESAMPLES):
        rows = generator.integers(len(oracle), size=len(oracle))
        apart[n] = abs(ratio(oracle[rows].sum(0)) - ratio(bundle[rows].sum(0)))
    further = int(np.count_nonzero(apart - apart.mean() > observed))
    return (further + 1) / (RESAMPLES + 1)  # the observed difference counts as one of them


def spread(oracle: NDArray[np.float64], bundle: NDArray[np.float64]) -> float:
    """Compute the standard error of the difference between two ratios of sums over segments.

    Args:
        oracle, bundle: as for `chance`
    """
    generator = np.random.default_rng(SEED)
    differences = np.empty(RESAMPLES)
    for n in range(RESAMPLES):
        rows = generator.integers(len(oracle), size=len(oracle))
        differences[n] = ratio(bundle[rows].sum(0)) - ratio(oracle[rows].sum(0))
    return float(differences.std())


def ratio(sums: NDArray[np.float64]) -> float:
    """Divide a numerator by a denominator, which may be 0 in a resample."""
    return float(sums[0] / max(sums[1], 1))
