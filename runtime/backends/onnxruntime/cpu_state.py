"""The state of a batch on the CPU: its buffers, and the decoding of its rows.

Caches are bound as input and output at the same address, so that `TensorScatter` writes in place.
Buffers are bound again only when the number of rows or the longest source changes. A buffer's first
axis, the batch, is a prefix of an allocation for the largest number of rows so far, so that the
address stays when rows are dropped or admitted.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ...format.contract import Change, GraphName, Owner, Slot
from ...format.manifest import Manifest
from ..interface import ClosedModelError, DecodingState, Encoded, Prediction, StepOutput
from ..prediction import HostPrediction, ShortlistPrediction
from ..rows import (
    ALLOWED_TOKEN,
    CACHED_TOKENS,
    POSITION_MULTIPLE,
    BatchShortlist,
    CacheHistory,
    padded_length,
    rows_of_sources,
    source_lengths,
    source_room,
)
from .host_buffers import HostBuffer
from .sessions import run

_TOKEN, _POSITION, _READ = Slot("token"), Slot("position"), Slot("read")
_MASK = Slot("source_mask")
_NEXT, _LOG_PROBABILITY = Slot("next_token"), Slot("next_log_probability")
_LOGITS = Slot("logits")
_OF_SHORTLIST = ("shortlist_weight", "allowed_token", "allowed_column")

LONG_PROMPT = 8
"""Tokens; longer prompts are read once for all beams of a source."""
LOGITS_AT_ONCE = 2**25
"""Numbers among the logits of a run; longer prompts are read in parts."""


class HostState:
    """The state of one batch on the CPU; implements `interface.DecodingState`.

    Args:
        sessions: those of the encoder, if any, and of the decoder step; no reference is kept
        shortlist: what the sources allow; None: all tokens
        least_rows: number of rows that a step computes at least; rows beyond the batch are ignored
    """

    def __init__(
        self,
        sessions: tuple[onnxruntime.InferenceSession | None, onnxruntime.InferenceSession],
        manifest: Manifest,
        graph: GraphName,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int,
        prompt_lengths: NDArray[np.int64] | None = None,
        shortlist: BatchShortlist | None = None,
        *,
        least_rows: int = 1,
    ) -> None:
        encoder, decoder = sessions
        self._decoder = weakref.ref(decoder)
        self._model, self._graph = manifest.model, manifest.graphs[graph]
        self._shortlist = shortlist
        self._suppressed = manifest.generation.suppressed_token_ids
        self._width = width
        self._least_rows = least_rows if width == 1 else 1
        sources, length = source_mask.shape
        rows = sources * width
        if prompt_lengths is None:
            prompt_lengths = np.full(sources, prompt.shape[1])
        self._buffers: dict[Slot, HostBuffer] = {
            _MASK: self._filled(source_mask, np.bool_),
            _TOKEN: self._filled(np.repeat(prompt, width, axis=0)),
            _POSITION: self._buffer((rows,), np.int64),
            _READ: self._filled(np.repeat(prompt_lengths, width)[:, None] - 1),
            _NEXT: self._buffer((rows,), np.int64),
            _LOG_PROBABILITY: self._buffer((rows,), np.float32),
        }
        self._buffers |= self._shortlist_buffers(shortlist)
        sizes = {"batch": rows, "source_batch": sources, "source": length, "capacity": capacity}
        for tensor in self._graph.inputs:
            if tensor.slot not in self._buffers:
                shape = tensor.sized(sizes)
                # Zeros, because NaN in an unwritten position would pass the mask.
                self._buffers[tensor.slot] = self._buffer(shape, np.dtype(tensor.dtype).type)
        of_rows = [t for t in self._graph.inputs if t.owner is Owner.DECODER_ROW]
        self._caches = [t.slot for t in of_rows if t.change is Change.APPENDED]
        self._states = [t.slot for t in of_rows if t.change is Change.REPLACED]
        owners = (Owner.ENCODER_ROW, Owner.MASK)
        of_sources = [t.slot for t in self._graph.inputs if t.owner in owners]
        self._of_sources = [*dict.fromkeys([*of_sources, _MASK])]  # decoder-only: no input
        self._pad()
        self._running = np.ones(rows, np.int64)
        """1 for each running row; 0 for retired sources, whose positions do not advance."""
        self._history = CacheHistory(rows, capacity) if width > 1 else None
        self._logits: HostBuffer | None = None
        """Bound only if the host selects tokens; the graph's selection needs no logits."""
        self._bindings: dict[int, onnxruntime.IOBinding] = {}
        """Bindings by number of sources, at the present addresses."""
        if encoder is not None:
            if isinstance(source, Mapping):
                for tensor in manifest.graphs["encoder"].outputs:
                    self._buffers[tensor.slot].write(source[tensor.name])
            else:
                self._encode(encoder, manifest, source)
            if prompt.shape[1] > LONG_PROMPT:
                self._read_row_by_row(prompt)

    def step(self) -> StepOutput:
        """Decode one position of every row and feed the selected tokens back."""
        run(self._open_decoder.run_with_iobinding, self._binding)
        self._written()
        step = self._choice()
        self.feed(step.tokens)
        return step

    def advance(self) -> Prediction:
        """Decode one position of every row without feeding tokens back."""
        if self._logits is None:
            spec = self._graph.output("logits")
            rows, queries = self._buffers[_TOKEN].array.shape
            read = queries if self._model.has_encoder else 1
            shape = (rows, read, self._model.target_vocab_size)
            if self._shortlist is not None:
                shape = (rows, 1, self._buffers[ALLOWED_TOKEN].array.shape[1])
            self._logits = self._buffer(shape, np.dtype(spec.dtype).type)
            self._logits_binding = self._bound()
            self._logits.bind(self._logits_binding.bind_output, spec.name)
        run(self._open_decoder.run_with_iobinding, self._logits_binding)
        self._written()
        logits = self._logits.array[:, -1].astype(np.float32, copy=False)
        if self._shortlist is not None:
            tokens = self._buffers[ALLOWED_TOKEN].array
            most = self._model.target_vocab_size
            return ShortlistPrediction(logits, tokens, self._choice(), self._suppressed, most)
        return HostPrediction(logits, self._choice(), self._suppressed)

    def feed(self, tokens: NDArray[np.int64]) -> None:
        """Set the next step's input."""
        rows, queries = self._buffers[_TOKEN].array.shape
        if queries > 1:  # the prompt has been read; from now on, one token at a time
            self._buffers[_TOKEN] = self._buffer((rows, 1), np.int64)
            self._buffers[_READ].write(np.zeros((rows, 1), np.int64))
            self._unbind()
        self._buffers[_TOKEN].write(tokens[:, None])

    def reorder(self, parents: NDArray[np.intp]) -> None:
        """Let row r continue the output of row parents[r]."""
        if self._history is None:
            return
        for move in self._history.copies(parents, self._buffers[_POSITION].array):
            for slot in self._caches:
                self._buffers[slot].move(*move)
        for slot in self._states:
            self._buffers[slot].write(self._buffers[slot].array[parents])

    def retire(self, sources: NDArray[np.intp]) -> None:
        """Stop decoding these sources."""
        rows = rows_of_sources(sources, self._width)
        self._running[rows] = 0
        self._buffers[_POSITION].array[rows] = 0

    def keep(self, sources: NDArray[np.intp]) -> None:
        """Drop all sources but these."""
        shortlist = self._shortlist and self._shortlist.kept(sources.tolist())
        tokens = self._shortlist_buffers(shortlist)
        for to, source in enumerate(sources.tolist()):
            if to != source:
                self._take_source(self, source, to)
        self._resize(len(sources), self._source_length)
        self._use(shortlist, tokens)

    def join(self, other: DecodingState, sources: NDArray[np.intp]) -> None:
        """Admit the sources of another batch."""
        if not isinstance(other, HostState):
            raise TypeError(f"expected a HostState, found {type(other).__name__}")
        present = self._buffers[_MASK].array.shape[0]
        staying = np.setdiff1d(np.flatnonzero(self._running[:: self._width]), sources)
        lengths = source_lengths(self._buffers[_MASK].array[staying])
        longest = int(max(lengths.max(initial=1), other._source_length))
        length = 0
        if self._model.has_encoder:
            length = source_room(self._source_length, longest)
            length = padded_length(length, POSITION_MULTIPLE, self._model.max_source_positions)
        count = max(present, int(sources.max()) + 1)
        shortlist = self._shortlist
        if shortlist is not None and other._shortlist is not None:
            shortlist = shortlist.joined(other._shortlist, sources.tolist(), staying.tolist())
        tokens = self._shortlist_buffers(shortlist)
        if (count, length) != (present, self._source_length):
            self._resize(count, length)
        for source, to in enumerate(sources.tolist()):
            self._take_source(other, source, to)
        self._use(shortlist, tokens)

    def encoded_source(self, source: int) -> dict[Slot, NDArray[Any]]:
        """Copy what the decoder reads of a source; see `interface.DecodingState`."""
        return {slot: self._buffers[slot].array[[source]] for slot in self._of_sources}

    def close(self) -> None:
        """Do nothing: buffers are freed with their last reference."""

    def _shortlist_buffers(self, shortlist: BatchShortlist | None) -> dict[Slot, HostBuffer]:
        buffers: dict[Slot, HostBuffer] = {}
        if shortlist is not None:
            for slot, values in shortlist.rows(self._width).items():
                buffers[slot] = self._filled(values)
            for slot, weights in shortlist.weights.items():
                buffers[slot] = HostBuffer.holding(weights)
        return buffers

    def _use(self, shortlist: BatchShortlist | None, buffers: dict[Slot, HostBuffer]) -> None:
        if shortlist is not None:
            self._shortlist = shortlist
            self._buffers |= buffers
            self._unbind()

    def _buffer(self, shape: tuple[int, ...], dtype: type[np.generic]) -> HostBuffer:
        return HostBuffer(shape, dtype, self._least_rows)

    def _filled(self, values: NDArray[Any], dtype: type[np.generic] = np.int64) -> HostBuffer:
        buffer = self._buffer(values.shape, dtype)
        buffer.write(values)
        return buffer

    def _pad(self) -> None:
        """Let rows beyond the batch read one token and the whole source, so that all is finite."""
        for slot, value in {_MASK: 1, _TOKEN: 0, _POSITION: 0, _READ: 0}.items():
            self._buffers[slot].pad(value)

    @property
    def _open_decoder(self) -> onnxruntime.InferenceSession:
        session = self._decoder()
        if session is None:
            raise ClosedModelError
        return session

    @property
    def _source_length(self) -> int:
        return int(self._buffers[_MASK].array.shape[1])

    def _choice(self) -> StepOutput:
        slots = (_NEXT, _LOG_PROBABILITY)
        return StepOutput(*(self._buffers[slot].array.copy() for slot in slots))

    def _written(self) -> None:
        """Advance positions past the last query that was read; later cache entries are masked."""
        position, queries = self._buffers[_POSITION].array, self._buffers[_TOKEN].array.shape[1]
        if self._history is not None:
            self._history.write(position, queries)
        position += (self._buffers[_READ].array[:, 0] + 1) * self._running

    def _take_source(self, other: HostState, source: int, to: int) -> None:
        for slot in self._of_sources:
            self._buffers[slot].put(to, other._buffers[slot].array[source])
        self._buffers[_MASK].array[to, other._source_length :] = False
        for beam in range(self._width):
            row, place = source * self._width + beam, to * self._width + beam
            written = int(other._buffers[_POSITION].array[row])
            for slot in self._caches:
                self._buffers[slot].put(place, other._buffers[slot].array[row, :, :written])
            for slot in (_TOKEN, _POSITION, *self._states):
                self._buffers[slot].put(place, other._buffers[slot].array[row])
            self._running[place] = other._running[row]
            if self._history is not None and other._history is not None:
                self._history.take(other._history, row, place)

    def _resize(self, sources: int, length: int) -> None:
        """Resize buffers, or change nothing if there is not enough memory; contents are kept."""
        rows = sources * self._width
        shapes: dict[Slot, tuple[int, ...]] = {}
        for slot, buffer in self._buffers.items():
            if slot.role in _OF_SHORTLIST:
                continue  # replaced whole
            _, *inner = buffer.array.shape
            if slot == _MASK:
                shapes[slot] = (sources, length)
            elif slot in self._of_sources:
                shapes[slot] = (sources, inner[0], length, inner[2])
            else:
                shapes[slot] = (rows, *inner)
        # All memory is allocated before any buffer of the graph is freed.
        rooms = {slot: self._buffers[slot].room_for(shape) for slot, shape in shapes.items()}
        written = int(self._buffers[_POSITION].array.max(initial=0))
        for slot, shape in shapes.items():
            kept = written if slot in self._caches else None
            if self._buffers[slot].resize(shape, rooms.pop(slot), kept):
                self._bindings.clear()
        self._pad()
        self._logits = None
        missing = max(0, rows - len(self._running))
        self._running = np.pad(self._running, (0, missing))[:rows]
        if self._history is not None:
            self._history.resize(rows)

    def _encode(
        self, encoder: onnxruntime.InferenceSession, manifest: Manifest, source: NDArray[Any]
    ) -> None:
        graph = manifest.graphs["encoder"]
        source_buffer = HostBuffer(source.shape, np.float32 if source.ndim == 3 else np.int64)
        source_buffer.write(source)
        sources, length = self._buffers[_MASK].array.shape
        at_once = max(1, CACHED_TOKENS // length)
        for first in range(0, sources, at_once):
            rows = slice(first, first + at_once)
            binding = encoder.io_binding()
            for tensor in graph.inputs:
                buffer = self._buffers.get(tensor.slot, source_buffer)
                buffer.bind(binding.bind_input, tensor.name, rows)
            for tensor in graph.outputs:
                self._buffers[tensor.slot].bind(binding.bind_output, tensor.name, rows)
            run(encoder.run_with_iobinding, binding)

    def _read_row_by_row(self, prompt: NDArray[np.int64]) -> None:
        """Read all but the last tokens of prompts, once for all beams of a source.

        The step that follows reads the last ones, of all rows at once.
        """
        part = max(1, LOGITS_AT_ONCE // self._model.target_vocab_size)
        length = prompt.shape[1] - 1
        for source, tokens in enumerate(prompt[:, :length]):
            row = source * self._width
            for first in range(0, length, part):
                self._read_part(tokens[first : first + part], first, source, row)
            for slot in self._caches:
                for beam in range(row + 1, row + self._width):
                    self._buffers[slot].move(row, beam, 0, length)
            for slot in self._states:
                rows = self._buffers[slot].array[row : row + self._width]
                rows[:] = rows[0]
        self._buffers[_TOKEN] = self._filled(np.repeat(prompt[:, length:], self._width, axis=0))
        self._buffers[_POSITION].write(np.array(length))
        self._buffers[_READ].write(np.array(0))

    def _read_part(self, tokens: NDArray[np.int64], position: int, source: int, row: int) -> None:
        own = {_TOKEN: HostBuffer((1, len(tokens)), np.int64)}
        for slot in (_POSITION, _NEXT, _LOG_PROBABILITY):
            own[slot] = HostBuffer((1,), self._buffers[slot].array.dtype.type)
        own[_TOKEN].write(tokens)
        own[_POSITION].write(np.array(position))
        binding = self._open_decoder.io_binding()
        for tensor in (*self._graph.inputs, *self._graph.outputs):
            slot = tensor.memory
            if slot == _LOGITS:
                continue
            at = 0 if slot in own else source if slot in self._of_sources else row
            part = None if slot.role == "shortlist_weight" else slice(at, at + 1)
            bind = binding.bind_input if tensor in self._graph.inputs else binding.bind_output
            own.get(slot, self._buffers[slot]).bind(bind, tensor.name, part)
        run(self._open_decoder.run_with_iobinding, binding)

    @property
    def _binding(self) -> onnxruntime.IOBinding:
        sources = len(self._buffers[_MASK].array)
        if sources not in self._bindings:
            self._bindings[sources] = self._bound()
        return self._bindings[sources]

    def _unbind(self) -> None:
        self._bindings.clear()
        self._logits = None

    def _bound(self) -> onnxruntime.IOBinding:
        binding = self._open_decoder.io_binding()
        for tensor in self._graph.inputs:
            self._buffers[tensor.slot].bind(binding.bind_input, tensor.name)
        for tensor in self._graph.outputs:
            if tensor.slot != _LOGITS:
                self._buffers[tensor.memory].bind(binding.bind_output, tensor.name)
        return binding
