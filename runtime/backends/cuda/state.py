"""A batch being decoded on the device. See `interface.DecodingState`.

A step is enqueued long before its tokens are read: the device feeds back its own choice, and the
host reads the tokens of several steps together, later. Whatever the device decodes after the last
row has ended is discarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.contract import Change, Role, Slot
from ...format.manifest import Manifest
from ..interface import Step
from .device import Bytes
from .layout import Rounding, Sizes, multiple_of, shape_of, tensors_with_memory
from .tensors import as_numbers, size_of
from .workspace import Workspace

MOST_AT_ONCE = 4
"""Steps whose tokens are read together."""

SHARE_AT_ONCE = 8
"""... but at most one for every 8 steps done, so that a short output is not followed by a long wait
for steps that are discarded."""

IN_FLIGHT = 2
"""Groups of steps in the stream: while the host reads one, the device works on the next."""

RESULT_BUFFERS = MOST_AT_ONCE * (IN_FLIGHT + 1)
ALIGNMENT = 256
"""The alignment of tensors, in bytes (TensorRT, `setTensorAddress`; cudaMalloc guarantees it)."""


@dataclass
class _Group:
    """Steps in the stream.

    Attributes:
        buffers: the results of each step go to this buffer on the host
        rows: where the rows of the batch are on the device
    """

    event: Any
    buffers: list[int]
    rows: NDArray[np.intp]


@dataclass
class _Result:
    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]
    rows: NDArray[np.intp]


class DeviceState:
    """One batch, in a workspace that it owns until `close`."""

    def __init__(
        self,
        workspace: Workspace,
        manifest: Manifest,
        rounding: Rounding,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        release: Callable[[Workspace], None],
    ) -> None:
        self._workspace, self._manifest, self._rounding = workspace, manifest, rounding
        self._release: Callable[[Workspace], None] | None = release
        self._capacity = capacity
        rows, longest = source_mask.shape
        self._sizes = rounding.first(rows, longest, capacity)
        self._rows = np.arange(len(source))
        self._launched = 0
        self._read = 0
        self._flight: deque[_Group] = deque()
        self._ready: deque[_Result] = deque()
        with workspace.preparing:
            self._reserve()
            self._encode(source, source_mask)
            self._begin()
        self._prompt = prompt
        self._last = prompt[:, -1]

    # interface.DecodingState

    def step(self) -> Step:
        self._take_prompt()
        if not self._ready:
            self._fill()
            group = self._flight.popleft()
            self._workspace.device.wait(group.event)
            self._workspace.return_event(group.event)
            self._ready.extend(self._result(buffer, group.rows) for buffer in group.buffers)
            self._fill()
        result = self._ready.popleft()
        self._read += 1
        self._last = result.tokens[result.rows]
        return Step(self._last, result.log_probabilities[result.rows])

    def step_choosing(self, choose: Callable[[NDArray[np.float32]], Step]) -> Step:
        self._take_prompt()
        self._rewind()
        chosen = choose(self._logits()[self._rows, 0])
        self._feed_rows(chosen.tokens)
        return chosen

    def keep(self, rows: NDArray[np.intp]) -> None:
        self._rows, self._prompt = self._rows[rows], self._prompt[rows]
        self._last = self._last[rows]
        for group in self._flight:
            group.rows = group.rows[rows]
        for result in self._ready:
            result.rows = result.rows[rows]
        sizes = self._rounding.after(self._sizes, len(rows))
        if sizes.rows < self._sizes.rows:
            self._compact(sizes)

    def close(self) -> None:
        """Release the workspace; no other method may be called afterwards."""
        release, self._release = self._release, None
        if release is not None:
            self._forget_flight()
            release(self._workspace)

    # Teacher forcing.

    def logits_after(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [B, V] that follow these tokens [B], the next one of each row."""
        self._feed_rows(tokens)
        logits: NDArray[np.float32] = self._logits()[self._rows, 0]
        return logits

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Make these tokens the next step's input, for all rows on the device."""
        address = self._address[Slot("token")]
        self._workspace.device.upload(address, tokens.astype(np.int64), self._workspace.stream)

    # Measurement.

    def put(self, steps: int) -> None:
        """Enqueue steps whose tokens are not read."""
        self._take_prompt()
        for _ in range(steps):
            self._launch()
        self._read = self._launched

    def wait(self) -> None:
        """Wait until everything in the stream is done."""
        self._workspace.device.synchronize(self._workspace.stream)

    def encoded(self, rows: int, source: int) -> dict[str, NDArray[Any]]:
        """The encoder's outputs, cut to this many rows and source positions."""
        device, stream = self._workspace.device, self._workspace.stream
        outputs = {}
        for tensor in self._manifest.graphs["encoder"].outputs:
            shape = shape_of(tensor, self._sizes)
            size = size_of(tensor.dtype, shape)
            memory = self._workspace.host_memory("encoded", size)[:size]
            device.download(memory, self._address[tensor.slot], stream)
            device.synchronize(stream)
            outputs[tensor.name] = as_numbers(memory, tensor.dtype, shape)[:rows, :, :source]
        return outputs

    def _rewind(self) -> None:
        """Go back to the step after the last one that was read: later steps used the graph's own
        choice."""
        if self._launched > self._read:
            self._forget_flight()
            self._ready.clear()
            self._launched = self._read
            self._feed_rows(self._last)

    def _forget_flight(self) -> None:
        for group in self._flight:
            self._workspace.return_event(group.event)
        self._flight.clear()

    def _feed_rows(self, tokens: NDArray[np.int64]) -> None:
        """Set the next step's input [B] for the rows of the batch; the other rows get a copy."""
        wide = np.full(self._sizes.rows, tokens[-1])
        wide[self._rows] = tokens
        self.feed(wide)

    def _take_prompt(self) -> None:
        """Decode the prompt token by token for its keys and values; the last token becomes the next
        step's input."""
        prompt, self._prompt = self._prompt, self._prompt[:, :0]
        for index, tokens in enumerate(prompt.T):
            if index:
                self._launch()
                self._read += 1
            self._feed_rows(tokens)

    # Memory.

    def _reserve(self) -> None:
        """Reserve memory for every tensor; it keeps its address as rows leave."""
        workspace, sizes = self._workspace, self._sizes
        # Results have the same addresses for every batch, as captured graphs expect.
        workspace.widest = max(workspace.widest, sizes.rows)
        self._tokens_size = multiple_of(ALIGNMENT, 8 * workspace.widest)
        self._result_size = self._tokens_size + 4 * workspace.widest
        self._address: dict[Slot, int] = {}
        for tensor in tensors_with_memory(self._manifest):
            size = size_of(tensor.dtype, shape_of(tensor, sizes))
            self._address[tensor.slot] = workspace.arena.reserve(str(tensor.slot), size)
        results = workspace.arena.reserve("results", self._result_size)
        self._address[Slot("next_token")] = results
        self._address[Slot("next_log_probability")] = results + self._tokens_size
        self._line = 8 * sizes.rows
        most = self._manifest.model.max_target_positions
        self._positions = workspace.arena.reserve("positions", self._line * most)

    def _encode(self, source: NDArray[Any], source_mask: NDArray[np.bool_]) -> None:
        values_of: dict[Role, tuple[NDArray[Any], int]] = {
            "source": (source, self._manifest.model.pad_token_id),
            "source_mask": (source_mask, False),
        }
        for tensor in tensors_with_memory(self._manifest):
            if tensor.role in values_of:
                values, padding = values_of[tensor.role]
                wide = _filled(values, shape_of(tensor, self._sizes), padding)
                address = self._address[tensor.slot]
                self._workspace.device.upload(address, wide, self._workspace.stream)
        self._workspace.encode(self._sizes, self._address)

    def _begin(self) -> None:
        device, stream, sizes = self._workspace.device, self._workspace.stream, self._sizes
        for tensor in self._manifest.graphs["decoder"].inputs:
            if tensor.change is Change.APPENDED:
                # A position not yet written is masked, but NaN would pass the mask.
                address = self._address[tensor.slot]
                device.clear(address, size_of(tensor.dtype, shape_of(tensor, sizes)), stream)
        steps = np.repeat(np.arange(self._capacity)[:, None], sizes.rows, 1)
        device.upload(self._positions, steps.astype(np.int64), stream)
        self._results = self._workspace.host_memory("results", RESULT_BUFFERS * self._result_size)
        self._workspace.prepare(sizes, self._address)

    # Steps.

    def _fill(self) -> None:
        """Enqueue groups of steps, as far as there is room in the caches."""
        while len(self._flight) < IN_FLIGHT and self._launched < self._capacity:
            group_size = max(1, min(MOST_AT_ONCE, self._read // SHARE_AT_ONCE))
            buffers = []
            for _ in range(min(group_size, self._capacity - self._launched)):
                buffers.append(self._launched % RESULT_BUFFERS)
                self._launch()
                memory = self._result_buffer(buffers[-1])
                results = self._address[Slot("next_token")]
                self._workspace.device.download(memory, results, self._workspace.stream)
            event = self._workspace.take_event()
            self._workspace.device.record(event, self._workspace.stream)
            self._flight.append(_Group(event, buffers, self._rows))

    def _launch(self) -> None:
        """Enqueue one step, which reads the token that the previous one chose."""
        device, stream, rows = self._workspace.device, self._workspace.stream, self._sizes.rows
        step = self._positions + self._line * self._launched
        device.copy(self._address[Slot("position")], step, 8 * rows, stream)
        self._workspace.step()
        self._launched += 1

    def _logits(self) -> NDArray[np.float32]:
        """Do one step and wait for its logits, float32 [rows, 1, V]. No other may be in flight."""
        device, stream = self._workspace.device, self._workspace.stream
        self._launch()
        self._read += 1
        spec = self._manifest.graphs["decoder"].output("logits")
        shape = shape_of(spec, self._sizes)
        size = size_of(spec.dtype, shape)
        memory = self._workspace.host_memory("logits", size)[:size]
        device.download(memory, self._address[Slot("logits")], stream)
        device.synchronize(stream)
        return as_numbers(memory, spec.dtype, shape).astype(np.float32)

    def _result_buffer(self, index: int) -> Bytes:
        memory = self._results[index * self._result_size : (index + 1) * self._result_size]
        return memory

    def _result(self, buffer: int, rows: NDArray[np.intp]) -> _Result:
        memory = self._result_buffer(buffer).copy()
        tokens = memory[: self._tokens_size].view(np.int64)
        return _Result(tokens, memory[self._tokens_size :].view(np.float32), rows)

    def _compact(self, sizes: Sizes) -> None:
        """Move rows beyond the new size to where other rows have left, on the device."""
        rows = self._rows.copy()
        holes = sorted(set(range(sizes.rows)) - set(rows.tolist()))
        for index in np.flatnonzero(rows >= sizes.rows):
            to = holes.pop(0)
            self._move(int(rows[index]), to)
            rows[index] = to
        self._rows, self._sizes = rows, sizes
        self._workspace.prepare(sizes, self._address)

    def _move(self, row: int, to: int) -> None:
        """Move one row of everything that the decoder reads; of caches, the positions written."""
        device, stream = self._workspace.device, self._workspace.stream
        for tensor in self._manifest.graphs["decoder"].inputs:
            if tensor.role == "position":  # the same for all rows
                continue
            shape = shape_of(tensor, self._sizes)
            size = size_of(tensor.dtype, shape[1:])
            base = self._address[tensor.slot]
            there, here = base + size * to, base + size * row
            if tensor.change is Change.APPENDED:
                _, heads, _, width = shape
                used = size_of(tensor.dtype, (self._launched, width))
                device.copy_2d(there, here, size // heads, used, heads, stream)
            else:
                device.copy(there, here, size, stream)


def _filled(values: NDArray[Any], shape: tuple[int, ...], padding: int) -> NDArray[Any]:
    """Pad to this shape. Added rows are copies: a row without any token would produce NaN."""
    missing = [(0, size - present) for size, present in zip(shape, values.shape, strict=True)]
    inner = np.pad(values, [(0, 0), *missing[1:]], constant_values=padding)
    return np.pad(inner, [missing[0], *((0, 0) for _ in missing[1:])], mode="edge")
