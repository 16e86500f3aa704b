"""A batch being decoded on the device. See `interface.DecodingState`.

A step is put into the device's stream long before its tokens are looked at: the device feeds its
choice back by itself, and the host reads some steps at once, later. What the device decoded after
the last row had ended is thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...manifest import Manifest, Role
from ..interface import Step
from .device import Bytes
from .layout import Rounding, Sizes, Slot, multiple_of, shape_of, tensors_with_memory
from .tensors import as_numbers, size_of
from .workplace import Workplace

MOST_AT_ONCE = 4
"""Steps whose tokens are read together."""

SHARE_AT_ONCE = 8
"""... but no more than one for each so many steps that are done, so that a short output is not
followed by a long wait for steps that nobody wants."""

IN_FLIGHT = 2
"""Groups of steps in the stream: while the host looks at one the device works on the next."""

SLOTS = MOST_AT_ONCE * (IN_FLIGHT + 1)
ALIGNMENT = 256
"""Of the address of a tensor, in bytes (TensorRT, `setTensorAddress`; cudaMalloc gives no less)."""


@dataclass
class _Group:
    """Steps in the stream. `rows`: where on the device the rows of the batch are."""

    event: Any
    slots: list[int]
    rows: NDArray[np.intp]


@dataclass
class _Result:
    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]
    rows: NDArray[np.intp]


class DeviceState:
    """One batch, in a workplace that is its own until `close`."""

    def __init__(
        self,
        place: Workplace,
        manifest: Manifest,
        rounding: Rounding,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        release: Callable[[Workplace], None],
    ) -> None:
        self._place, self._manifest, self._rounding = place, manifest, rounding
        self._release: Callable[[Workplace], None] | None = release
        self._capacity = capacity
        rows, longest = source_mask.shape
        self._sizes = rounding.first(rows, longest, capacity)
        self._rows = np.arange(len(source))
        self._launched = 0
        self._read = 0
        self._flight: deque[_Group] = deque()
        self._ready: deque[_Result] = deque()
        with place.preparing:
            self._reserve()
            self._encode(source, source_mask)
            self._begin()
        self._prompt = prompt
        self._last = prompt[:, -1]

    # What `interface.DecodingState` asks for.

    def step(self) -> Step:
        self._take_prompt()
        if not self._ready:
            self._fill()
            group = self._flight.popleft()
            self._place.device.wait(group.event)
            self._place.return_event(group.event)
            self._ready.extend(self._result(slot, group.rows) for slot in group.slots)
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
        wanted = self._rounding.after(self._sizes, len(rows))
        if wanted.rows < self._sizes.rows:
            self._compact(wanted)

    def close(self) -> None:
        """Give the workplace back; the state is of no use afterwards."""
        release, self._release = self._release, None
        if release is not None:
            self._forget_flight()
            release(self._place)

    # For scoring: tokens that are given, not chosen.

    def logits_after(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [B, V] that follow the given tokens [B], the next of each row."""
        self._feed_rows(tokens)
        logits: NDArray[np.float32] = self._logits()[self._rows, 0]
        return logits

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Let these be the next step's input, for all rows on the device."""
        address = self._address["token", None]
        self._place.device.upload(address, tokens.astype(np.int64), self._place.stream)

    # For measuring.

    def put(self, steps: int) -> None:
        """Put steps into the stream whose tokens nobody reads."""
        self._take_prompt()
        for _ in range(steps):
            self._launch()
        self._read = self._launched

    def wait(self) -> None:
        """Until all that is in the stream is done."""
        self._place.device.synchronize(self._place.stream)

    def encoded(self, rows: int, source: int) -> dict[str, NDArray[Any]]:
        """The encoder's outputs, so many rows and source positions of them."""
        device, stream = self._place.device, self._place.stream
        outputs = {}
        for tensor in self._manifest.encoder.outputs:
            shape = shape_of(tensor, self._sizes)
            size = size_of(tensor.dtype, shape)
            memory = self._place.host_memory("encoded", size)[:size]
            device.download(memory, self._address[tensor.role, tensor.layer], stream)
            device.synchronize(stream)
            outputs[tensor.name] = as_numbers(memory, tensor.dtype, shape)[:rows, :, :source]
        return outputs

    def _rewind(self) -> None:
        """Let the next step be the one after the last that was asked for: those that ran ahead
        chose for themselves."""
        if self._launched > self._read:
            self._forget_flight()
            self._ready.clear()
            self._launched = self._read
            self._feed_rows(self._last)

    def _forget_flight(self) -> None:
        for group in self._flight:
            self._place.return_event(group.event)
        self._flight.clear()

    def _feed_rows(self, tokens: NDArray[np.int64]) -> None:
        """The next step's input [B] of the batch's rows; the others on the device get a copy."""
        wide = np.full(self._sizes.rows, tokens[-1])
        wide[self._rows] = tokens
        self.feed(wide)

    def _take_prompt(self) -> None:
        """A token at a time: all of the prompt but the last is decoded for its keys
        and values, and the last is the next step's input."""
        prompt, self._prompt = self._prompt, self._prompt[:, :0]
        for index, tokens in enumerate(prompt.T):
            if index:
                self._launch()
                self._read += 1
            self._feed_rows(tokens)

    # What is on the device.

    def _reserve(self) -> None:
        """Memory for every tensor, which keeps its address as rows leave."""
        place, sizes = self._place, self._sizes
        # Results lie at the same place whatever the batch, as captured graphs expect.
        place.widest = max(place.widest, sizes.rows)
        self._tokens_size = multiple_of(ALIGNMENT, 8 * place.widest)
        self._result_size = self._tokens_size + 4 * place.widest
        self._address: dict[Slot, int] = {}
        for tensor in tensors_with_memory(self._manifest):
            size = size_of(tensor.dtype, shape_of(tensor, sizes))
            slot = (tensor.role, tensor.layer)
            self._address[slot] = place.arena.reserve(f"{tensor.role} {tensor.layer}", size)
        results = place.arena.reserve("results", self._result_size)
        self._address["next_token", None] = results
        self._address["next_log_probability", None] = results + self._tokens_size
        self._line = 8 * sizes.rows
        most = self._manifest.model.max_target_positions
        self._positions = place.arena.reserve("positions", self._line * most)

    def _encode(self, source: NDArray[Any], source_mask: NDArray[np.bool_]) -> None:
        given: dict[Role, tuple[NDArray[Any], int]] = {
            "source": (source, self._manifest.model.pad_token_id),
            "source_mask": (source_mask, False),
        }
        for tensor in tensors_with_memory(self._manifest):
            if tensor.role in given:
                values, padding = given[tensor.role]
                wide = _filled(values, shape_of(tensor, self._sizes), padding)
                address = self._address[tensor.role, None]
                self._place.device.upload(address, wide, self._place.stream)
        self._place.encode(self._sizes, self._address)

    def _begin(self) -> None:
        device, stream, sizes = self._place.device, self._place.stream, self._sizes
        for tensor in self._manifest.decoder.inputs:
            if tensor.role in ("past_key", "past_value"):
                # A position that is not written is masked, but what is no number survives a mask.
                address = self._address[tensor.role, tensor.layer]
                device.clear(address, size_of(tensor.dtype, shape_of(tensor, sizes)), stream)
        steps = np.repeat(np.arange(self._capacity)[:, None], sizes.rows, 1)
        device.upload(self._positions, steps.astype(np.int64), stream)
        self._slots = self._place.host_memory("results", SLOTS * self._result_size)
        self._place.prepare(sizes, self._address)

    # Steps.

    def _fill(self) -> None:
        """Put groups of steps into the stream, as far as there is room in the caches."""
        while len(self._flight) < IN_FLIGHT and self._launched < self._capacity:
            wanted = max(1, min(MOST_AT_ONCE, self._read // SHARE_AT_ONCE))
            slots = []
            for _ in range(min(wanted, self._capacity - self._launched)):
                slots.append(self._launched % SLOTS)
                self._launch()
                memory = self._slot(slots[-1])
                results = self._address["next_token", None]
                self._place.device.download(memory, results, self._place.stream)
            event = self._place.take_event()
            self._place.device.record(event, self._place.stream)
            self._flight.append(_Group(event, slots, self._rows))

    def _launch(self) -> None:
        """Put one step into the stream: it reads the token that the one before it chose."""
        device, stream, rows = self._place.device, self._place.stream, self._sizes.rows
        step = self._positions + self._line * self._launched
        device.copy(self._address["position", None], step, 8 * rows, stream)
        self._place.step()
        self._launched += 1

    def _logits(self) -> NDArray[np.float32]:
        """Do one step and wait for its logits, float32 [rows, 1, V]. No other may be in flight."""
        device, stream = self._place.device, self._place.stream
        self._launch()
        self._read += 1
        spec = next(t for t in self._manifest.decoder.outputs if t.role == "logits")
        shape = shape_of(spec, self._sizes)
        size = size_of(spec.dtype, shape)
        memory = self._place.host_memory("logits", size)[:size]
        device.download(memory, self._address["logits", None], stream)
        device.synchronize(stream)
        return as_numbers(memory, spec.dtype, shape).astype(np.float32)

    def _slot(self, index: int) -> Bytes:
        memory = self._slots[index * self._result_size : (index + 1) * self._result_size]
        return memory

    def _result(self, slot: int, rows: NDArray[np.intp]) -> _Result:
        memory = self._slot(slot).copy()
        tokens = memory[: self._tokens_size].view(np.int64)
        return _Result(tokens, memory[self._tokens_size :].view(np.float32), rows)

    def _compact(self, sizes: Sizes) -> None:
        """Move rows that lie too far behind to where others have left, on the device."""
        rows = self._rows.copy()
        holes = sorted(set(range(sizes.rows)) - set(rows.tolist()))
        for index in np.flatnonzero(rows >= sizes.rows):
            to = holes.pop(0)
            self._move(int(rows[index]), to)
            rows[index] = to
        self._rows, self._sizes = rows, sizes
        self._place.prepare(sizes, self._address)

    def _move(self, row: int, to: int) -> None:
        """One row of everything that the decoder reads; of caches what was written."""
        device, stream = self._place.device, self._place.stream
        for tensor in self._manifest.decoder.inputs:
            if tensor.role == "position":
                continue
            shape = shape_of(tensor, self._sizes)
            size = size_of(tensor.dtype, shape[1:])
            base = self._address[tensor.role, tensor.layer]
            there, here = base + size * to, base + size * row
            if tensor.role in ("past_key", "past_value"):
                _, heads, _, width = shape
                used = size_of(tensor.dtype, (self._launched, width))
                device.copy_2d(there, here, size // heads, used, heads, stream)
            else:
                device.copy(there, here, size, stream)


def _filled(values: NDArray[Any], shape: tuple[int, ...], padding: int) -> NDArray[Any]:
    """Made as large as that. Rows that fill up are copies: rows without any token would give
    numbers that are none."""
    missing = [(0, wanted - found) for wanted, found in zip(shape, values.shape, strict=True)]
    inner = np.pad(values, [(0, 0), *missing[1:]], constant_values=padding)
    return np.pad(inner, [missing[0], *((0, 0) for _ in missing[1:])], mode="edge")
