"""What every contender decodes: batches that differ in one of two sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..peers.interface import Batch

CALIBRATED_ON = 16
"""Sources of each length."""


class Point(NamedTuple):
    """A batch's sizes.

    Attributes:
        batch_size: sources
        source_length: tokens of each
    """

    batch_size: int
    source_length: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, source {self.source_length}"


@dataclass(frozen=True)
class Workload:
    """Two series of points, which cross where both have the same sizes.

    Attributes:
        batch_sizes: with sources of `source_length`
        source_lengths: with `source_batch` sources
        new_tokens: tokens that every row generates
        tokens: source tokens are drawn from range(*tokens)
    """

    batch_sizes: tuple[int, ...]
    source_length: int
    source_lengths: tuple[int, ...]
    source_batch: int
    new_tokens: int
    tokens: tuple[int, int]

    @property
    def by_batch(self) -> list[Point]:
        return [Point(size, self.source_length) for size in self.batch_sizes]

    @property
    def by_source(self) -> list[Point]:
        return [Point(self.source_batch, length) for length in self.source_lengths]

    def batches(self) -> dict[Point, Batch]:
        """The batch of every point, the same at every call; a point of both series is there once,
        so that they agree on it.
        """
        return {point: self._batch(point) for point in (*self.by_batch, *self.by_source)}

    def calibration(self) -> list[list[int]]:
        """Sources of all lengths that are in no batch, for tools that are calibrated."""
        generator = np.random.default_rng(0)
        lengths = [*self.source_lengths, self.source_length] * CALIBRATED_ON
        return [generator.integers(*self.tokens, length).tolist() for length in lengths]

    def _batch(self, point: Point) -> Batch:
        sources = np.random.default_rng(point).integers(*self.tokens, point)
        return Batch(sources.tolist(), self.new_tokens)
