"""The tensors of a batch in device memory; copies are enqueued in the stream of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.contract import Change, Owner, Slot, TensorSpec
from ...format.manifest import Manifest
from .device import Bytes
from .layout import (
    BUFFERS,
    ResultLayout,
    RowLayout,
    Sizes,
    as_numbers,
    row_layout,
    shape_of,
    size_of,
    tensors_with_memory,
)
from .workspace import Workspace


class BatchMemory:
    """The memory of a batch, with a place for each source and `sizes.width` rows in each place.

    Attributes:
        positions: address of the table of positions, see `steps.Positions`
        states: the states of a recurrent decoder that a step reads, one for each layer
    """

    def __init__(self, workspace: Workspace, manifest: Manifest, sizes: Sizes) -> None:
        self._workspace, self.sizes = workspace, sizes
        self._device, self._stream = workspace.device, workspace.stream.number
        self._most_positions = manifest.model.max_target_positions
        self._tensors = tensors_with_memory(manifest)
        decoder = manifest.graphs.get("decoder")
        inputs = decoder.inputs if decoder else ()
        self._of_sources = [t for t in inputs if t.owner in (Owner.ENCODER_ROW, Owner.MASK)]
        self._caches = [t for t in inputs if t.change is Change.APPENDED]
        self.states = [t for t in inputs if t.role == "past_state"]
        self._read = next((t for t in inputs if t.role == "read"), None)
        for name, size in self._needs(sizes).items():
            workspace.arena.reserve(name, size)
        self._find(sizes)

    def upload(self, slot: Slot, values: NDArray[Any]) -> None:
        """Copy values to a tensor."""
        self._device.upload(self.address[slot], values, self._stream)

    def fill(self, tensor: TensorSpec, values: NDArray[Any], padding: int = 0) -> None:
        """Copy padded values to a whole tensor.

        Added rows are copies, as a row without tokens would produce NaN.
        """
        shape = shape_of(tensor, self.sizes)
        missing = [(0, size - present) for size, present in zip(shape, values.shape, strict=True)]
        inner = np.pad(values, [(0, 0), *missing[1:]], constant_values=padding)
        whole = np.pad(inner, [missing[0], *((0, 0) for _ in missing[1:])], mode="edge")
        self.upload(tensor.slot, whole)

    def download(self, *tensors: TensorSpec) -> list[NDArray[Any]]:
        """Wait for all enqueued work and return copies of tensors."""
        sizes = [self._size(tensor, self.sizes) for tensor in tensors]
        whole = self._workspace.host_memory("tensors", sum(sizes))
        parts = np.split(whole[: sum(sizes)], np.cumsum(sizes)[:-1])
        for tensor, part in zip(tensors, parts, strict=True):
            self._device.download(part, self.address[tensor.slot], self._stream)
        self._device.synchronize(self._stream)
        return [
            as_numbers(part, tensor.dtype, shape_of(tensor, self.sizes))
            for tensor, part in zip(tensors, parts, strict=True)
        ]

    def download_results(self, memory: Bytes) -> None:
        """Enqueue a copy of the results of the last step to host memory."""
        address, size = self.address[Slot("next_token")], self.results.size
        self._device.download(memory[:size], address, self._stream)

    def clear_caches(self, first: int = 0) -> None:
        """Set caches and states of all rows from `first` on to zero: NaN would pass the mask.

        The index of the query to read is set to 0, since a step has one query.
        """
        if self._read is not None:
            size = self._size(self._read, self.sizes)
            self._device.clear(self.address[self._read.slot], size, self._stream)
        count = self.sizes.rows - first
        for tensor in self._caches if count > 0 else ():
            size = row_layout(tensor, self.sizes).size
            address = self.address[tensor.slot] + first * size
            self._device.clear(address, count * size, self._stream)
        self.clear_states(first, max(0, count))

    def state(self, state: TensorSpec, row: int = 0) -> tuple[int, int]:
        """Return the address and the size of a row's state."""
        size = self._size(state, self.sizes) // self.sizes.rows
        return self.address[state.slot] + row * size, size

    def clear_states(self, first: int, count: int) -> None:
        """Set the states of `count` rows from `first` on to zero, as before the first step."""
        for state in self.states if count else ():
            address, size = self.state(state, first)
            self._device.clear(address, count * size, self._stream)

    def earlier(self, state: TensorSpec) -> int:
        """Return the address of the states before the last steps, see `steps.EarlierStates`."""
        return self._workspace.arena.address(_earlier(state))

    def take_states(self, other: BatchMemory, row: int, to: int) -> None:
        """Copy the states of a row of this or another batch to a row."""
        for state in self.states:
            (there, size), (here, _) = self.state(state, to), other.state(state, row)
            self._device.copy(there, here, size, self._stream)

    def reorder_states(self, parents: NDArray[np.intp]) -> None:
        """Let row r have the states of row parents[r]; `present_state` is scratch memory here."""
        moves = [(row, to) for to, row in enumerate(parents.tolist()) if row != to]
        for state in self.states if moves else ():
            address, size = self.state(state)
            aside = self.address[Slot("present_state", state.layer)]
            self._device.copy(aside, address, self.sizes.rows * size, self._stream)
            for row, to in moves:
                there, here = address + to * size, aside + row * size
                self._device.copy(there, here, size, self._stream)

    def take_source(self, other: BatchMemory, source: int, to: int) -> None:
        """Copy a source of this or another batch to a place; what exceeds it must be padding."""
        for tensor in self._of_sources:
            mine, theirs = row_layout(tensor, self.sizes), row_layout(tensor, other.sizes)
            there = self.address[tensor.slot] + to * mine.size
            here = other.address[tensor.slot] + source * theirs.size
            if tensor.owner is Owner.MASK and mine.pitch > theirs.pitch:
                self._device.clear(there, mine.size, self._stream)
            self._copy(there, mine, here, theirs, min(mine.pitch, theirs.pitch), mine.lines)

    def take_row(self, other: BatchMemory, row: int, to: int, begin: int, end: int) -> None:
        """Copy positions `begin` to `end` of a row of this or another batch to a row."""
        for tensor in self._caches if begin < end else ():
            mine, theirs = row_layout(tensor, self.sizes), row_layout(tensor, other.sizes)
            there = self.address[tensor.slot] + to * mine.size + begin * mine.position
            here = other.address[tensor.slot] + row * theirs.size + begin * theirs.position
            self._copy(there, mine, here, theirs, (end - begin) * mine.position, mine.lines)

    def move_tokens(self, source: int, to: int) -> None:
        """Copy the next tokens of a source's rows to the rows of another place."""
        tokens, size = self.address[Slot("token")], 8 * self.sizes.width
        self._device.copy(tokens + to * size, tokens + source * size, size, self._stream)

    def grow(self, sizes: Sizes) -> None:
        """Reserve memory for tensors of these sizes, or change nothing if there is not enough."""
        needs = self._needs(sizes)
        if sizes.source != self.sizes.source:
            needs["moving"] = max(self._size(tensor, self.sizes) for tensor in self._of_sources)
        self._workspace.arena.grow(needs, self._stream)
        self._find(sizes)

    def lay_out(self, sizes: Sizes) -> None:
        """Lay out the tensors for these sizes, for which memory is reserved.

        New places get a copy of the first source, since a row without tokens would produce NaN.
        """
        present, self.sizes = self.sizes, sizes
        if sizes.source != present.source:
            for tensor in self._of_sources:
                self._change_length(tensor, present)
        for place in range(present.sources, sizes.sources):
            self.take_source(self, 0, place)
        self.clear_caches(present.rows)

    def _change_length(self, tensor: TensorSpec, present: Sizes) -> None:
        """Change the number of positions of a tensor; new positions are zero and thus masked."""
        old, new = row_layout(tensor, present), row_layout(tensor, self.sizes)
        address, aside = self.address[tensor.slot], self._workspace.arena.address("moving")
        self._device.copy(aside, address, self._size(tensor, present), self._stream)
        self._device.clear(address, self._size(tensor, self.sizes), self._stream)
        lines = min(present.sources, self.sizes.sources) * new.lines
        self._copy(address, new, aside, old, min(new.pitch, old.pitch), lines)

    def _copy(
        self, to: int, mine: RowLayout, source: int, theirs: RowLayout, width: int, lines: int
    ) -> None:
        self._device.copy_2d(to, mine.pitch, source, theirs.pitch, width, lines, self._stream)

    def _needs(self, sizes: Sizes) -> dict[str, int]:
        # Captured graphs expect results at the same addresses for every batch.
        widest = max(self._workspace.widest, sizes.rows)
        return {
            **{str(tensor.slot): self._size(tensor, sizes) for tensor in self._tensors},
            **{_earlier(state): BUFFERS * self._size(state, sizes) for state in self.states},
            "results": ResultLayout(widest).size,
            "positions": 8 * sizes.rows * max(1, self._most_positions),
        }

    def _find(self, sizes: Sizes) -> None:
        workspace, arena = self._workspace, self._workspace.arena
        workspace.widest = max(workspace.widest, sizes.rows)
        self.results = ResultLayout(workspace.widest)
        self.address = {t.slot: arena.address(str(t.slot)) for t in self._tensors}
        self.address[Slot("next_token")] = arena.address("results")
        self.address[Slot("next_log_probability")] = arena.address("results") + self.results.tokens
        self.positions = arena.address("positions")

    def _size(self, tensor: TensorSpec, sizes: Sizes) -> int:
        return size_of(tensor.dtype, shape_of(tensor, sizes))


def _earlier(state: TensorSpec) -> str:
    return f"earlier {state.slot}"
