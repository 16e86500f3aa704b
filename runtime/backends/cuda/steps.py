"""The steps of a batch: their positions, the states before them, and the steps in flight.

The device feeds back the tokens that it selects; the host reads those of several steps together,
later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.contract import Slot
from ..interface import StepOutput
from .device import Bytes
from .layout import BUFFERS, GROUP_SIZE, GROUPS_IN_FLIGHT, ResultLayout
from .memory import BatchMemory
from .workspace import Workspace


class Positions:
    """The position at which each row of a batch decodes next.

    A table on the device has a line for each coming step, which copies it to the decoder's input.
    It is uploaded again only when rows deviate from it.

    Finished rows stay at the last position, so that they never write beyond the capacity. Rows that
    begin later than others have a negative position, and decode position 0 until they begin.
    """

    def __init__(self, workspace: Workspace, memory: BatchMemory, capacity: int) -> None:
        self._workspace, self._memory, self._capacity = workspace, memory, capacity
        self._begin = np.zeros(memory.sizes.rows, np.int64)
        self._steps = 0
        self._uploaded: NDArray[np.int64] | None = None
        """Value of `_begin` in the table; None: the table must be uploaded again."""
        self._first = 0

    @property
    def next(self) -> NDArray[np.int64]:
        """The next position of each row on the device.

        Results of a row beyond the last position are not read.
        """
        return self._begin + self._steps

    def place(self, row: int, position: int) -> None:
        """Set the next position of a row."""
        self._begin[row] = position - self._steps
        if self._uploaded is not None and self._uploaded[row] != self._begin[row]:
            self._uploaded = None

    def resize(self, rows: int) -> None:
        """Change the number of rows; new rows begin at position 0."""
        missing = max(0, rows - len(self._begin))
        if missing:
            self._uploaded = None
        begin = np.pad(self._begin, (0, missing), constant_values=-self._steps)
        self._begin = begin[:rows]

    def put(self) -> None:
        """Enqueue the positions of a step."""
        line = self._steps - self._first
        if self._uploaded is None or not 0 <= line < self._capacity:
            # A line for this step and each later one.
            lines = (self.next + np.arange(self._capacity)[:, None]).clip(0, self._capacity - 1)
            stream = self._workspace.stream.number
            self._workspace.device.upload(self._memory.positions, lines, stream)
            self._uploaded, self._first, line = self._begin.copy(), self._steps, 0
        table = self._memory.positions + 8 * len(self._uploaded) * line
        address, size = self._memory.address[Slot("position")], 8 * len(self._begin)
        self._workspace.device.copy(address, table, size, self._workspace.stream.number)
        self._steps += 1

    def go_back(self, steps: int) -> None:
        """Go back by a number of steps, which will be decoded again."""
        self._steps -= steps


class EarlierStates:
    """The states of a recurrent decoder before each of the steps in flight, to go back to.

    A step that is decoded again writes the same positions of a cache, but would move a state on
    twice. Each row has the states of `BUFFERS` steps, used in turn.
    """

    def __init__(self, workspace: Workspace, memory: BatchMemory) -> None:
        self._memory = memory
        self._device, self._stream = workspace.device, workspace.stream.number
        self._steps = 0

    def put(self) -> None:
        """Enqueue a copy of the states before a step."""
        self._copy(back=False)
        self._steps += 1

    def go_back(self, steps: int) -> None:
        """Enqueue a copy of the states before the first of the last `steps` steps."""
        self._steps -= steps
        self._copy(back=True)

    def move(self, row: int, to: int) -> None:
        """Copy the earlier states of a row to another row."""
        for state in self._memory.states:
            address, size = self._memory.earlier(state), BUFFERS * self._memory.state(state)[1]
            self._device.copy(address + to * size, address + row * size, size, self._stream)

    def _copy(self, *, back: bool) -> None:
        for state in self._memory.states:
            address, size = self._memory.state(state)
            earlier = self._memory.earlier(state) + self._steps % BUFFERS * size
            ends = [(address, size), (earlier, BUFFERS * size)]
            (to, to_pitch), (source, pitch) = ends if back else ends[::-1]
            rows = self._memory.sizes.rows
            self._device.copy_2d(to, to_pitch, source, pitch, size, rows, self._stream)


READS_PER_STEP = 8
"""A group has at most one step for every 8 steps read since steps were last discarded. Short
outputs and frequent admissions therefore discard few steps."""


@dataclass
class _Group:
    event: Any
    """Event that is signalled when the steps are done."""
    buffers: list[int]
    """Index of the host buffer for the results of each step."""
    rows: NDArray[np.intp]
    """Device rows of the batch's rows."""


class StepsInFlight:
    """The steps of a batch that are enqueued and not yet read."""

    def __init__(self, workspace: Workspace, memory: BatchMemory) -> None:
        self._workspace, self._memory = workspace, memory
        self._groups: deque[_Group] = deque()
        self._ready: deque[StepOutput] = deque()
        self._read = 0
        self._enqueued = 0
        self.steps = 0
        self.reserve(memory.sizes.rows)

    def reserve(self, rows: int) -> None:
        """Reserve page-locked memory for the results of `rows` rows, while no step is in flight."""
        widest = max(rows, self._memory.results.widest)
        self._workspace.host_memory("results", BUFFERS * ResultLayout(widest).size)

    @property
    def full(self) -> bool:
        """Whether enough steps are in flight."""
        return len(self._groups) == GROUPS_IN_FLIGHT

    def fill(self, rows: int, room: int, launch: Callable[[], None]) -> None:
        """Enqueue steps until enough are in flight."""
        while not self.full and room > 0:
            size = min(room, max(1, min(GROUP_SIZE, self._read // READS_PER_STEP)))
            self._put(size, rows, launch)
            room -= size

    def read(self) -> StepOutput:
        """Wait for the first group; return the results of the first step in flight."""
        if not self._ready:
            group = self._groups.popleft()
            self._workspace.device.wait(group.event)
            self._workspace.return_event(group.event)
            for buffer in group.buffers:
                results = self._memory.results.read(self._buffer(buffer), group.rows)
                self._ready.append(results)
        self._read += 1
        self.steps -= 1
        return self._ready.popleft()

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Restrict the results in flight to these rows."""
        for group in self._groups:
            group.rows = group.rows[rows]
        self._ready = deque(
            StepOutput(step.tokens[rows], step.log_probabilities[rows]) for step in self._ready
        )

    def discard(self) -> int:
        """Discard the steps in flight."""
        for group in self._groups:
            self._workspace.return_event(group.event)
        self._groups.clear()
        self._ready.clear()
        discarded, self.steps = self.steps, 0
        if discarded:
            self._read = 0
        return discarded

    def _put(self, steps: int, rows: int, launch: Callable[[], None]) -> None:
        buffers = []
        for _ in range(steps):
            buffers.append(self._enqueued % BUFFERS)
            launch()
            self._memory.download_results(self._buffer(buffers[-1]))
            self._enqueued += 1
            self.steps += 1
        event = self._workspace.take_event()
        self._workspace.device.record(event, self._workspace.stream.number)
        self._groups.append(_Group(event, buffers, np.arange(rows)))

    def _buffer(self, index: int) -> Bytes:
        size = self._memory.results.size
        memory = self._workspace.host_memory("results", BUFFERS * size)
        return memory[index * size : (index + 1) * size]
