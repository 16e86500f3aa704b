"""The position at which each row of a batch decodes next.

A table on the device has a line for each of the steps to come, and a step copies its line to the
decoder's input. It is uploaded again only when rows are not where it says: rows that come to the
place of others may be at other positions.
"""

from __future__ import annotations

import numpy as np

from ...format.contract import Slot
from .memory import BatchMemory
from .workspace import Workspace


class Positions:
    """Rows whose output has ended go on with the others and, once they are at the last position,
    stay there: they never write beyond the capacity.

    Args:
        capacity: the number of positions

    Attributes:
        next: int64 [rows on the device], where each decodes next
    """

    def __init__(self, workspace: Workspace, memory: BatchMemory, capacity: int) -> None:
        self._workspace, self._memory, self._capacity = workspace, memory, capacity
        self.next = np.zeros(memory.sizes.rows, np.int64)
        self._first = np.zeros(0, np.int64)
        self._line = 0

    def resize(self, rows: int) -> None:
        """New rows begin at position 0."""
        missing = max(0, rows - len(self.next))
        self.next = np.pad(self.next, (0, missing))[:rows]

    def put(self) -> None:
        """Enqueue the positions of a step."""
        if not self._table_holds():
            self._upload()
        table = self._memory.positions + 8 * len(self._first) * self._line
        self._workspace.device.copy(
            *(self._memory.address[Slot("position")], table),
            *(8 * len(self.next), self._workspace.stream),
        )
        self.next += 1
        self._line += 1

    def go_back(self, steps: int) -> None:
        """Decode the last steps again."""
        self.next -= steps
        self._line -= steps

    def _table_holds(self) -> bool:
        """Whether the next line of the table is what it must be; it may have more rows."""
        known = 0 <= self._line < self._capacity
        return known and np.array_equal(self._first[: len(self.next)] + self._line, self.next)

    def _upload(self) -> None:
        self._first, self._line = self.next.copy(), 0
        table = self.next + np.arange(self._capacity)[:, None]
        self._workspace.device.upload(
            *(self._memory.positions, np.minimum(table, self._capacity - 1)),
            self._workspace.stream,
        )
