"""The position at which each row of a batch decodes next.

A table on the device has a line for each of the steps to come, and a step copies its line to the
decoder's input. It is uploaded again only when rows are not where it says: rows that come to the
place of others may be at other positions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...format.contract import Slot
from .memory import BatchMemory
from .workspace import Workspace


class Positions:
    """Rows whose output has ended go on with the others and, once they are at the last position,
    stay there: they never write beyond the capacity. Rows that are to begin later than others are
    placed before position 0, and stay at it until then.

    Args:
        capacity: the number of positions
    """

    def __init__(self, workspace: Workspace, memory: BatchMemory, capacity: int) -> None:
        self._workspace, self._memory, self._capacity = workspace, memory, capacity
        self._begin = np.zeros(memory.sizes.rows, np.int64)
        self._steps = 0
        self._uploaded: NDArray[np.int64] | None = None
        """`_begin` as the table has it; None: the table is not what it must be."""
        self._first = 0

    @property
    def next(self) -> NDArray[np.int64]:
        """[rows on the device], where each decodes next; beyond the last position, nobody reads
        what it decodes.
        """
        return self._begin + self._steps

    def place(self, row: int, position: int) -> None:
        """A row decodes next at this position."""
        self._begin[row] = position - self._steps
        if self._uploaded is not None and self._uploaded[row] != self._begin[row]:
            self._uploaded = None

    def resize(self, rows: int) -> None:
        """New rows begin at position 0."""
        missing = max(0, rows - len(self._begin))
        if missing:
            self._uploaded = None
        begin = np.pad(self._begin, (0, missing), constant_values=-self._steps)
        self._begin = begin[:rows]

    def put(self) -> None:
        """Enqueue the positions of a step."""
        line = self._steps - self._first
        if self._uploaded is None or not 0 <= line < self._capacity:
            self._uploaded, line = self._upload(), 0
        table = self._memory.positions + 8 * len(self._uploaded) * line
        address, size = self._memory.address[Slot("position")], 8 * len(self._begin)
        self._workspace.device.copy(address, table, size, self._workspace.stream)
        self._steps += 1

    def go_back(self, steps: int) -> None:
        """Decode the last steps again."""
        self._steps -= steps

    def _upload(self) -> NDArray[np.int64]:
        """A line for the next step and each that may follow."""
        table = (self.next + np.arange(self._capacity)[:, None]).clip(0, self._capacity - 1)
        self._workspace.device.upload(self._memory.positions, table, self._workspace.stream)
        self._first = self._steps
        return self._begin.copy()
