"""Steps that are enqueued long before their tokens are read: the device feeds back its own choice,
and the host reads the tokens of several steps together, later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interface import Step
from .device import Bytes
from .memory import BatchMemory
from .results import ResultLayout
from .workspace import Workspace

MOST_AT_ONCE = 4
"""Steps whose tokens are read together."""

SHARE_AT_ONCE = 8
"""... but at most one for every 8 steps read since steps were last discarded, so that a short
output, or a batch that others join often, is not followed by many steps that are discarded."""

IN_FLIGHT = 2
"""Groups of steps in the stream: while the host reads one, the device works on the next."""

BUFFERS = MOST_AT_ONCE * (IN_FLIGHT + 1)


@dataclass
class _Group:
    """Steps in the stream.

    Attributes:
        event: signalled when they are done
        buffers: the results of each step go to this buffer on the host
        rows: where the rows of the batch were on the device
    """

    event: Any
    buffers: list[int]
    rows: NDArray[np.intp]


class Flight:
    """The steps of a batch that were enqueued and not read.

    Attributes:
        steps: their number
    """

    def __init__(self, workspace: Workspace, memory: BatchMemory) -> None:
        self._workspace, self._memory = workspace, memory
        self._groups: deque[_Group] = deque()
        self._ready: deque[Step] = deque()
        self._read = 0
        self._enqueued = 0
        self.steps = 0
        self.reserve(memory.sizes.rows)

    def reserve(self, rows: int) -> None:
        """Page-locked memory for the results of this many rows, when no step is in flight.

        Raises:
            BackendError: there is none.
        """
        widest = max(rows, self._memory.results.widest)
        self._workspace.host_memory("results", BUFFERS * ResultLayout(widest).size)

    @property
    def full(self) -> bool:
        """Whether enough steps are in flight."""
        return len(self._groups) == IN_FLIGHT

    def fill(self, rows: int, room: int, launch: Callable[[], None]) -> None:
        """Enqueue steps until enough are in flight.

        Args:
            rows: of the batch
            room: at most this many steps
            launch: enqueues one
        """
        while not self.full and room > 0:
            size = min(room, max(1, min(MOST_AT_ONCE, self._read // SHARE_AT_ONCE)))
            self._put(size, rows, launch)
            room -= size

    def read(self) -> Step:
        """The results of the first step in flight; waits for its group."""
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
        """Of all results in flight, only those of these rows will be read."""
        for group in self._groups:
            group.rows = group.rows[rows]
        self._ready = deque(
            Step(step.tokens[rows], step.log_probabilities[rows]) for step in self._ready
        )

    def discard(self) -> int:
        """Read none of the steps in flight.

        Returns:
            their number
        """
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
        self._workspace.device.record(event, self._workspace.stream)
        self._groups.append(_Group(event, buffers, np.arange(rows)))

    def _buffer(self, index: int) -> Bytes:
        size = self._memory.results.size
        memory = self._workspace.host_memory("results", BUFFERS * size)
        return memory[index * size : (index + 1) * size]
