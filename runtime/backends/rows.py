"""The rows of a batch: lengths of sources, and cached positions that rows have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.contract import TensorSpec

SHRINK_BELOW = 3 / 4
"""Sources are laid out again once the longest needs at most this share of the allocated positions,
since attention reads all of them."""

POSITION_MULTIPLE = 4
"""Sources, and the positions of a target, are padded to a multiple of this on the CPU.

Attention multiplies this many keys at once, and the remaining keys one by one. Masked keys add
nothing to a sum, so with this padding its order depends neither on the batch's longest source nor
on the room for its longest output."""


def rows_of_sources(sources: NDArray[np.intp], width: int) -> NDArray[np.intp]:
    """Return the rows of sources: source `s` has rows `width * s` to `width * s + width - 1`."""
    rows: NDArray[np.intp] = (width * sources[:, None] + np.arange(width)).ravel()
    return rows


def part_of(source: NDArray[Any] | Mapping[str, NDArray[Any]], rows: slice) -> Any:
    """Take some sources of a batch, whether they are encoded or not."""
    if isinstance(source, Mapping):
        return {name: values[rows] for name, values in source.items()}
    return source[rows]


def unwritten(tensor: TensorSpec, rows: int, capacity: int) -> NDArray[Any]:
    """Make the caches or the states of decoder rows before their first step: zeros."""
    return np.zeros(tensor.sized({"batch": rows, "capacity": capacity}), tensor.dtype)


def source_lengths(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of positions up to the last token of each source.

    Returns:
        [N]; 1 for a mask without positions, as for decoder-only models
    """
    if not mask.shape[1]:
        return np.ones(len(mask), np.int64)
    after: NDArray[np.int64] = np.maximum(1, mask.shape[1] - mask[:, ::-1].argmax(axis=1))
    return after


def padded_length(length: int, multiple: int, most: int) -> int:
    """Round a length up to a multiple, limited to `most` positions."""
    return max(length, min(-(-length // multiple) * multiple, most))


def source_room(present: int, longest: int) -> int:
    """Return the number of positions to allocate for each source.

    Args:
        present: number of positions allocated now
        longest: length of the longest source that remains or joins
    """
    return present if SHRINK_BELOW * present < longest < present else longest


class RowCopy(NamedTuple):
    """A copy of the cached positions `begin` to `end` of row `row` to row `to`."""

    row: int
    to: int
    begin: int
    end: int


class CacheHistory:
    """Records which step of which row wrote each cached position of each row.

    Beams of a source share most cached positions. A beam that continues another one needs only the
    positions after the two diverged.

    Args:
        rows: number of rows of the batch
        capacity: number of positions of a row
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self._writers = np.zeros((rows, capacity), np.int64)
        self._written = 0

    def write(self, positions: NDArray[np.int64], queries: int) -> None:
        """Record that every row has decoded `queries` tokens from its position on."""
        rows = len(positions)
        numbers = np.arange(self._written + 1, self._written + 1 + rows * queries)
        at = positions[:, None] + np.arange(queries)
        self._writers[np.arange(rows)[:, None], at] = numbers.reshape(rows, queries)
        self._written += rows * queries

    def copies(self, parents: NDArray[np.intp], positions: NDArray[np.int64]) -> list[RowCopy]:
        """Return the copies that let row r continue row parents[r], and record them as done.

        Args:
            positions: number of written positions of each row
        """
        copies = []
        for to in np.flatnonzero(parents != np.arange(len(parents))).tolist():
            row = int(parents[to])
            end = int(positions[row])
            theirs, ours = self._writers[row, :end], self._writers[to, :end]
            different = np.flatnonzero(theirs != ours)
            if len(different):
                copies.append(RowCopy(row, to, int(different[0]), end))
                ours[:] = theirs
        return copies

    def take(self, other: CacheHistory, row: int, to: int) -> None:
        """Replace a row by a row of this or another batch of the same capacity."""
        self._writers[to] = other._writers[row]

    def resize(self, rows: int) -> None:
        """Change the number of rows; new rows have no positions in common with others."""
        missing = rows - len(self._writers)
        if missing > 0:
            self._writers = np.pad(self._writers, ((0, missing), (0, 0)))
