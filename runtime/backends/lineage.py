"""Which positions two rows have in common, so that only the others move between them.

Beams of a source share most of what they have decoded: a beam that continues another one needs only
what came after the two parted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Move(NamedTuple):
    """Copy positions `begin` to `end` of what row `row` has decoded to row `to`."""

    row: int
    to: int
    begin: int
    end: int


class Lineage:
    """For each position of each row, which step of which row wrote it.

    Args:
        rows: of the batch
        capacity: positions of a row
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self._writers = np.zeros((rows, capacity), np.int64)
        self._written = 0

    def write(self, positions: NDArray[np.int64], queries: int) -> None:
        """Every row has decoded this many queries from its position on."""
        rows = len(positions)
        numbers = np.arange(self._written + 1, self._written + 1 + rows * queries)
        at = positions[:, None] + np.arange(queries)
        self._writers[np.arange(rows)[:, None], at] = numbers.reshape(rows, queries)
        self._written += rows * queries

    def moves(self, parents: NDArray[np.intp], positions: NDArray[np.int64]) -> list[Move]:
        """What must be copied so that row r continues row parents[r]; the rows count as copied.

        Args:
            positions: how many positions of each row are written
        """
        moves = []
        for to in np.flatnonzero(parents != np.arange(len(parents))).tolist():
            row = int(parents[to])
            end = int(positions[row])
            theirs, ours = self._writers[row, :end], self._writers[to, :end]
            different = np.flatnonzero(theirs != ours)
            if len(different):
                moves.append(Move(row, to, int(different[0]), end))
                ours[:] = theirs
        return moves

    def take(self, other: Lineage, row: int, to: int) -> None:
        """A row of this or of another batch of the same capacity takes the place of a row."""
        self._writers[to] = other._writers[row]

    def resize(self, rows: int) -> None:
        """New rows have written nothing in common with others."""
        missing = rows - len(self._writers)
        if missing > 0:
            self._writers = np.pad(self._writers, ((0, missing), (0, 0)))
