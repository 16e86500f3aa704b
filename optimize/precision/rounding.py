"""Quantizing weights to integers, with a smaller error than rounding each weight to the nearest.

Scales are searched: clipping the largest weight of a block may reduce the error of the others. The
error that rounding one input's weights causes in the product is reduced by adjusting the weights of
later inputs (Frantar et al. 2022, "GPTQ", algorithm 1, with inputs in their original order).

Dimensions: K inputs, N outputs, G blocks of inputs that share one scale per output.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


NUMBERS_AT_ONCE = 2**18
"""Numbers of a weight that are rounded at once, so that they stay in the processor's cache."""


class IntegerWeight(NamedTuple):
    """Integers [K, N] in [-limit, limit] and scales [G, N], one for each `block` inputs."""

    integers: NDArray[np.int8]
    scales: Float
    block: int

    def dequantized(self, outputs: slice = slice(None)) -> Float:
        """Return integers times scales, float32 [K, N], of some outputs."""
        scales = np.repeat(self.scales[:, outputs], self.block, axis=0)[: len(self.integers)]
        return (self.integers[:, outputs] * scales).astype(np.float32)


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
        moments: of the inputs, x^T x [K, K], over calibration rows x; None: as if inputs were
            independent and of equal variance, so that no error can be compensated
    """
    inputs, outputs = weight.shape
    size = block or inputs
    importance, factor = np.ones(inputs, np.float32), None
    if moments is not None:
        importance = np.diag(moments)
        importance = np.maximum(importance, LEAST_IMPORTANCE * importance.mean())
        factor = _inverse_factor(moments)
    integers = np.zeros((inputs, outputs), np.int8)
    scales = np.zeros((-(-inputs // size), outputs), np.float32)

    def round_part(part: slice) -> None:
        left = np.array(weight[:, part], np.float32, order="C")
        found = _round(left, bits, size, importance, factor, scale_type)
        integers[:, part], scales[:, part] = found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(round_part, parts_of_outputs(weight.shape, NUMBERS_AT_ONCE)))
    return IntegerWeight(integers, scales, size)


def parts_of_outputs(shape: tuple[int, ...], numbers: int) -> Iterator[slice]:
    """Divide the outputs of a weight [inputs, outputs] into parts of at most so many numbers."""
    inputs, outputs = shape
    width = max(1, numbers // inputs)
    return (slice(first, first + width) for first in range(0, outputs, width))


def _round(
    left: Float,
    bits: int,
    size: int,
    importance: Float,
    factor: Float | None,
    scale_type: type[np.floating[Any]],
) -> tuple[NDArray[np.int8], Float]:
    limit = 2 ** (bits - 1) - 1
    integers = np.zeros(left.shape, np.int8)
    scales = []
    for start in range(0, len(left), size):
        rows = slice(start, min(start + size, len(left)))
        scale = _search_scale(left[rows], importance[rows], limit, SHRINKAGES[bits])
        least = float(np.finfo(scale_type).smallest_subnormal)
        scale = np.maximum(scale.astype(scale_type), least).astype(np.float32)
        scales.append(scale)
        if factor is None:
            integers[rows] = np.clip(np.rint(left[rows] / scale), -limit, limit)
        else:
            _round_compensating(left, integers, factor, rows, scale, limit)
    return integers, np.stack(scales)


def _round_compensating(
    left: Float,
    integers: NDArray[np.int8],
    factor: Float,
    rows: slice,
    scale: Float,
    limit: int,
) -> None:
    """Round inputs one after another, adjusting later ones: other groups once per group."""
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
    """Return the upper triangular U with U^T U = H^-1, for the damped moments H.

    H reversed has a Cholesky factor L with H = (J L J) (J L J)^T, where J reverses; U inverts J L
    J.
    """
    damped: NDArray[np.float64] = moments.astype(np.float64)
    mean = float(np.mean(np.diag(damped)))
    damped[np.diag_indices_from(damped)] += DAMPING * mean if mean > 0 else 1.0
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    return np.asarray(_inverse_of_upper(upper), np.float32)


def _inverse_of_upper(matrix: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    size = len(matrix)
    if size <= GROUP:
        return np.asarray(np.triu(np.linalg.inv(matrix)))
    half = size // 2
    inverse = np.zeros_like(matrix)
    first, last = (_inverse_of_upper(matrix[part, part]) for part in (np.s_[:half], np.s_[half:]))
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[:half, half:] = -first @ matrix[:half, half:] @ last
    return inverse


def _search_scale(
    weight: Float, importance: Float, limit: int, shrinkages: NDArray[np.float64]
) -> Float:
    largest = np.abs(weight).max(axis=0)
    largest[largest == 0] = 1.0
    best = np.full(weight.shape[1], np.inf, np.float32)
    chosen = largest / limit
    error = np.empty_like(weight)
    for shrinkage in shrinkages:
        scale = (largest * np.float32(shrinkage) / limit).astype(np.float32)
        np.divide(weight, scale, out=error)
        np.rint(error, out=error)
        np.clip(error, -limit, limit, out=error)
        error *= scale
        error -= weight
        total = importance @ np.square(error, out=error)
        better = total < best
        best[better], chosen[better] = total[better], scale[better]
    return np.asarray(chosen, np.float32)
