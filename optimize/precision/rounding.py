"""Weights to integers, with less error than rounding each to the nearest.

Scales are searched for: the largest weight of a block need not be represented exactly if the others
gain by it. Errors are compensated: what rounding one input's weights does to the product is undone
as far as possible by the weights of the inputs still to be rounded (Frantar et al. 2022, "GPTQ",
algorithm 1, with the inputs in their own order).

Dimensions: K inputs, N outputs, G blocks of inputs that share a scale in each output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

DAMPING = 0.01
"""Added to the diagonal of the second moments, relative to its mean."""

SHRINKAGES = {
    8: np.linspace(0.90, 1.0, 6),
    7: np.linspace(0.85, 1.0, 7),
    4: np.linspace(0.62, 1.0, 20),
}
"""Scales tried for each number of bits, relative to the one that represents the largest weight."""


class Rounded(NamedTuple):
    """Integers [K, N] in [-limit, limit] and their scales [G, N], one for each `block` inputs."""

    integers: NDArray[np.int8]
    scales: Float
    block: int

    def weight(self) -> Float:
        """Their product [K, N]."""
        scales = np.repeat(self.scales, self.block, axis=0)[: len(self.integers)]
        return (self.integers * scales).astype(np.float32)


def round_weight(
    weight: Float,
    *,
    bits: int,
    block: int | None = None,
    moments: Float | None = None,
    scale_type: type[np.floating[Any]] = np.float32,
) -> Rounded:
    """Round a weight [K, N], symmetrically.

    Args:
        bits: 8, 7 or 4
        block: inputs that share a scale; all of them if None
        moments: second moments of the inputs, x^T x [K, K], for a number of x; None: inputs are
            taken for independent and alike, so that nothing can be compensated
        scale_type: what scales are numbers of
    """
    inputs, outputs = weight.shape
    size = block or inputs
    limit = 2 ** (bits - 1) - 1
    left = weight.astype(np.float32, copy=True)
    integers = np.zeros((inputs, outputs), np.int8)
    scales = np.zeros((-(-inputs // size), outputs), np.float32)
    importance = np.ones(inputs, np.float32) if moments is None else np.diag(moments)
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
    return Rounded(integers, scales, size)


def _round_compensating(
    left: Float,
    integers: NDArray[np.int8],
    factor: Float,
    rows: slice,
    scale: Float,
    limit: int,
) -> None:
    """Round some inputs' weights, one input after another, changing the weights of later ones.

    In groups: within one, changes go to its own rows at once; to those behind it together.
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


def _inverse_factor(moments: Float) -> Float:
    """The upper Cholesky factor U of the inverse of the damped moments: U^T U = H^-1."""
    damped: NDArray[np.float64] = moments.astype(np.float64)
    mean = float(np.mean(np.diag(damped)))
    damped[np.diag_indices_from(damped)] += DAMPING * mean if mean > 0 else 1.0
    inverse = np.linalg.inv(damped)
    return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T, np.float32)


def _search_scale(
    weight: Float, importance: Float, limit: int, shrinkages: NDArray[np.float64]
) -> Float:
    """For each output, the scale with the least squared error, weighted by importance."""
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
