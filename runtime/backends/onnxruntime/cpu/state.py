"""A batch being decoded on the processor. See `interface.DecodingState`.

Every buffer of a batch is allocated once and bound by address. Caches are bound as input and output
at the same address, which makes `TensorScatter` write in place; nothing is bound again until rows
leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ....format.contract import Change, Slot, TensorSpec
from ....format.manifest import Manifest
from ...interface import Step
from ..sessions import run
from .memory import HostBuffer

_TOKEN, _POSITION = Slot("token"), Slot("position")
_NEXT, _LOG_PROBABILITY = Slot("next_token"), Slot("next_log_probability")
_LOGITS = Slot("logits")


class BoundState:
    """One batch: a buffer for each tensor that the graphs read or write.

    Args:
        sessions: of encoder and decoder step
        dtype: of caches, cross keys and values
    """

    def __init__(
        self,
        sessions: tuple[onnxruntime.InferenceSession, onnxruntime.InferenceSession],
        manifest: Manifest,
        dtype: type[np.generic],
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> None:
        self._encoder, self._decoder = sessions
        self._model, self._graph = manifest.model, manifest.graphs["decoder"]
        batch, length = source_mask.shape
        self._buffers: dict[Slot, HostBuffer] = {
            Slot("source_mask"): HostBuffer((batch, length), np.bool_),
            _TOKEN: HostBuffer(prompt.shape, np.int64),
            _POSITION: HostBuffer((batch,), np.int64),
            _NEXT: HostBuffer((batch,), np.int64),
            _LOG_PROBABILITY: HostBuffer((batch,), np.float32),
        }
        self._buffers[Slot("source_mask")].write(source_mask)
        self._buffers[_TOKEN].write(prompt)
        heads, size = self._model.num_heads, self._model.head_size
        for tensor in self._graph.inputs:
            if tensor.slot not in self._buffers:
                positions = capacity if tensor.change is Change.APPENDED else length
                # Zeroed: a position not yet written is masked, but NaN would pass the mask.
                self._buffers[tensor.slot] = HostBuffer((batch, heads, positions, size), dtype)
        self._logits: HostBuffer | None = None
        """Only if the host chooses; the graph's own choice needs no logits."""
        self._encode(manifest, source)
        self._binding = self._bound()

    def step(self) -> Step:
        run(self._decoder.run_with_iobinding, self._binding)
        return self._advance(
            Step(self._buffers[_NEXT].read().copy(), self._buffers[_LOG_PROBABILITY].read().copy())
        )

    def step_choosing(self, choose: Callable[[NDArray[np.float32]], Step]) -> Step:
        if self._logits is None:
            spec = self._graph.output("logits")
            shape = (*self._buffers[_TOKEN].read().shape, self._model.target_vocab_size)
            self._logits = HostBuffer(shape, np.dtype(spec.dtype).type)
            self._logits_binding = self._bound()
            self._logits.bind_output(self._logits_binding, spec.name)
        run(self._decoder.run_with_iobinding, self._logits_binding)
        return self._advance(choose(self._logits.read()[:, -1].astype(np.float32, copy=False)))

    def keep(self, rows: NDArray[np.intp]) -> None:
        written = int(self._buffers[_POSITION].read()[0])
        appended = {t.slot for t in self._graph.inputs if t.change is Change.APPENDED}
        for slot, buffer in self._buffers.items():
            buffer.keep(rows, written if slot in appended else None)
        self._binding, self._logits = self._bound(), None

    def close(self) -> None:
        """A buffer is freed when the last reference to it is gone."""

    def _advance(self, step: Step) -> Step:
        batch, queries = self._buffers[_TOKEN].read().shape
        position = self._buffers[_POSITION]
        position.write(position.read() + queries)
        if queries > 1:  # that was the prompt; from here on one token at a time
            self._buffers[_TOKEN] = HostBuffer((batch, 1), np.int64)
            self._binding, self._logits = self._bound(), None
        self._buffers[_TOKEN].write(step.tokens[:, None])
        return step

    def _encode(self, manifest: Manifest, source: NDArray[Any]) -> None:
        graph = manifest.graphs["encoder"]
        dtype = np.float32 if source.dtype == np.float32 else np.int64
        source_buffer = HostBuffer(source.shape, dtype)
        source_buffer.write(source)
        binding = self._encoder.io_binding()
        for tensor in graph.inputs:
            self._buffers.get(tensor.slot, source_buffer).bind_input(binding, tensor.name)
        for tensor in graph.outputs:
            self._buffers[tensor.slot].bind_output(binding, tensor.name)
        run(self._encoder.run_with_iobinding, binding)

    def _bound(self) -> onnxruntime.IOBinding:
        """Every buffer but the logits bound at its address and present shape."""
        binding = self._decoder.io_binding()
        for tensor in self._graph.inputs:
            self._buffers[tensor.slot].bind_input(binding, tensor.name)
        for tensor in self._graph.outputs:
            if tensor.slot != _LOGITS:
                self._memory_of(tensor).bind_output(binding, tensor.name)
        return binding

    def _memory_of(self, tensor: TensorSpec) -> HostBuffer:
        """Of an output that updates an input, the input's."""
        return self._buffers[tensor.memory]
