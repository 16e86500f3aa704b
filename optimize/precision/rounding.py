"""Quantizing weights to integers, with a smaller error than rounding each weight to the nearest.

Scales are searched: clipping the largest weight of a block may reduce the error of the others.
Errors are compensated: the error that rounding one input's weights causes in the product is reduced
by adjusting the weights of the inputs that are still to be rounded (Frantar et al. 2022, "GPTQ",
algorithm 1, with inputs in their original order).

Dimensions: K inputs, N outputs, G blocks of inputs that share one scale per output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

DAMPING = 0.01
"""The damping of the second moments' diagonal, as a fraction of its mean."""

LEAST_IMPORTANCE = 0.5
"""The least importance of an input in the search of scales, as a fraction of the mean. An input
that calibration hardly reaches, such as a unit behind a ReLU, may be large elsewhere: its largest
weights would be clipped by many steps."""

SHRINKAGES = {
    8: np.linspace(0.90, 1.0, 6),
    7: np.linspace(0.85, 1.0, 7),
    4: np.linspace(0.62, 1.0, 20),
}
"""Scales to try for each number of bits, relative to that which represents the largest weight."""


class IntegerWeight(NamedTuple):
    """Integers [K, N] in [-limit, limit] and scales [G, N], one for each `block` inputs."""

    integers: NDArray[np.int8]
    scales: Float
    block: int

    def dequantized(self) -> Float:
        """Return integers times scales, float32 [K, N]."""
        scales = np.repeat(self.scales, self.block, axis=0)[: len(self.integers)]
        return (self.integers * scales).astype(np.float32)


def round_weight(
    weight: Float,
    *,
    bits: int,
    block: int | None = None,
    moments: Float | None = None,
    scale_type: type[np.floating[Any]] = np.float32,
) -> IntegerWeight:
    """Quantize a weight [K, N] symmetrically.

    Args:
        bits: 8, 7 or 4
        block: number of inputs that share a scale; None: all of them
        moments: second moments of the inputs, x^T x [K, K], over calibration rows x; None: inputs
            are assumed independent and of equal variance, so that no error can be compensated
        scale_type: the type that scales are rounded to
    """
    inputs, outputs = weight.shape
    size = block or inputs
    limit = 2 ** (bits - 1) - 1
    left = weight.astype(np.float32, copy=True)
    integers = np.zeros((inputs, outputs), np.int8)
    scales = np.zeros((-(-inputs // size), outputs), np.float32)
    importance = np.ones(inputs, np.float32) if moments is None else np.diag(moments)
    importance = np.maximum(importance, LEAST_IMPORTANCE * importance.mean())
    factor = None if moments is None else _inverse_factor(moments)
    for index, start in enumerate(range(0, inputs, size)):
        rows = slice(start, min(start + size, inputs))
        scale = _search_scale(left[rows], importance[rows], limit, SHRINKAGES[bits])
        least = float(np.finfo(scale_type).smallest_subnormal)
        scale = np.maximum(scale.astype(scale_type), least).astype(np.float32)
        scales[index] = scale
        if factor is None:
            integers[rows] = np.clip(np.rint(left[rows] / scale), -limit, limit)
            continue
        _round_compensating(left, integers, factor, rows, scale, limit)
    return IntegerWeight(integers, scales, size)


def _round_compensating(
    left: Float,
    integers: NDArray[np.int8],
    factor: Float,
    rows: slice,
    scale: Float,
    limit: int,
) -> None:
    """Round the weights of these inputs one after another, adjusting the weights of later inputs.

    Within a group of inputs, adjustments are applied at once; to later groups, once per group.
    """
    inputs = len(left)
    for start in range(rows.start, rows.stop, GROUP):
        stop = min(start + GROUP, rows.stop)
        errors = np.empty((stop - start, left.shape[1]), np.float32)
        for row in range(start, stop):
            rounded = np.clip(np.rint(left[row] / scale), -limit, limit)
            integers[row] = rounded
            error = (left[row] - rounded * scale) / factor[row, row]
            left[row + 1 : stop] -= factor[row, row + 1 : stop, None] * error
            errors[row - start] = error
        if stop < inputs:
            left[stop:] -= factor[start:stop, stop:].T @ errors


GROUP = 32
"""Inputs per group of `_round_compensating`, which makes most of its work matrix products."""


def _inverse_factor(moments: Float) -> Float:
    """Return the upper Cholesky factor U of the inverse of the damped moments: U^T U = H^-1."""
    damped: NDArray[np.float64] = moments.astype(np.float64)
    mean = float(np.mean(np.diag(damped)))
    damped[np.diag_indices_from(damped)] += DAMPING * mean if mean > 0 else 1.0
    inverse = np.linalg.inv(damped)
    return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T, np.float32)


def _search_scale(
    weight: Float, importance: Float, limit: int, shrinkages: NDArray[np.float64]
) -> Float:
    """Return the scale with the smallest squared error, weighted by importance, for each output."""
    largest = np.abs(weight).max(axis=0)
    largest[largest == 0] = 1.0
    best = np.full(weight.shape[1], np.inf, np.float32)
    chosen = largest / limit
    for shrinkage in shrinkages:
        scale = (largest * np.float32(shrinkage) / limit).astype(np.float32)
        error = weight - np.clip(np.rint(weight / scale), -limit, limit) * scale
        total = np.einsum("kn,kn,k->n", error, error, importance)
        better = total < best
        best[better], chosen[better] = total[better], scale[better]
    return np.asarray(chosen, np.float32)
