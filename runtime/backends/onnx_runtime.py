"""ONNX Runtime on the processor.

Every buffer of a batch is allocated once and bound by address. The caches are bound as input and
output at the same address, which makes `TensorScatter` write in place; nothing is bound again
until rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..bundle import Bundle
from ..manifest import GraphSpec, Role, TensorSpec
from .errors import BackendError
from .interface import Limits, Step
from .memory import HostBuffer
from .sessions import open_session, run

DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
}
"""Of weights, caches and logits."""


class OnnxRuntimeBackend:
    """Two sessions, encoder and decoder step. See `interface.Backend`."""

    def __init__(self, bundle: Bundle, *, threads: int | None) -> None:
        self.manifest = bundle.manifest
        self.dtype = _cache_dtype(bundle)
        self.encoder = self._session(bundle, bundle.manifest.encoder, threads, spin=False)
        self.decoder = self._session(bundle, bundle.manifest.decoder, threads, spin=True)

    def _session(
        self, bundle: Bundle, graph: GraphSpec, threads: int | None, *, spin: bool
    ) -> onnxruntime.InferenceSession:
        options = self._options(threads, spin=spin)
        return open_session(bundle, graph, options, "CPUExecutionProvider")

    def _options(self, threads: int | None, *, spin: bool) -> onnxruntime.SessionOptions:
        """Each session has threads of its own. Those of the encoder must not spin while the decoder
        works: on as many cores as threads that doubles the time of a step. One pool for both would
        be 5 % faster, but once ONNX Runtime has such a pool, every other session of the process,
        the user's too, must be told to use it or fails."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        return options

    @property
    def limits(self) -> Limits:
        return Limits()

    def rows_that_fit(self, source: int) -> None:
        """ONNX Runtime does not say what it will need."""

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> BoundState:
        return BoundState(self, source, source_mask, prompt, capacity)

    def encode(
        self, source: NDArray[Any], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        names = [tensor.name for tensor in self.manifest.encoder.outputs]
        feeds = {}
        for tensor in self.manifest.encoder.inputs:
            feeds[tensor.name] = source if tensor.role == "source" else source_mask
        return dict(zip(names, run(self.encoder.run, names, feeds), strict=True))

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        model = self.manifest.model
        batch, length = target.shape
        encoded = self.encode(source, source_mask)
        cross = {
            (tensor.role, tensor.layer): encoded[tensor.name]
            for tensor in self.manifest.encoder.outputs
        }
        cache = np.zeros((batch, model.num_heads, length, model.head_size), self.dtype)
        single = {
            "token": target,
            "position": np.zeros(batch, np.int64),
            "source_mask": source_mask,
            "past_key": cache,
            "past_value": cache,
        }
        feeds = {}
        for tensor in self.manifest.decoder.inputs:
            value = single.get(tensor.role)
            feeds[tensor.name] = cross[tensor.role, tensor.layer] if value is None else value
        logits = _one(self.manifest.decoder.outputs, "logits").name
        return np.asarray(run(self.decoder.run, [logits], feeds)[0])

    def close(self) -> None:
        """Sessions free what they hold when nobody has them any more."""


class BoundState:
    """One batch. See `interface.DecodingState`."""

    def __init__(
        self,
        backend: OnnxRuntimeBackend,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> None:
        self._backend = backend
        self._graph = backend.manifest.decoder
        self._capacity = capacity
        model = backend.manifest.model
        batch, length = source_mask.shape
        heads, size = model.num_heads, model.head_size

        self._source_mask = HostBuffer((batch, length), np.bool_)
        self._source_mask.write(source_mask)
        self._token = HostBuffer(prompt.shape, np.int64)
        self._token.write(prompt)
        self._position = HostBuffer((batch,), np.int64)
        self._next_token = HostBuffer((batch,), np.int64)
        self._log_probability = HostBuffer((batch,), np.float32)
        self._cross: dict[tuple[Role, int | None], HostBuffer] = {}
        self._caches: dict[tuple[Role, int | None], HostBuffer] = {}
        for tensor in self._graph.inputs:
            slot = (tensor.role, tensor.layer)
            # Zeroed: an unwritten position is masked, but NaN would survive the mask.
            if tensor.role in ("cross_key", "cross_value"):
                self._cross[slot] = HostBuffer((batch, heads, length, size), backend.dtype)
            elif tensor.role in ("past_key", "past_value"):
                self._caches[slot] = HostBuffer((batch, heads, capacity, size), backend.dtype)
        self._logits: HostBuffer | None = None
        """Only where a step chooses among some tokens: the graph's own choice is among all."""
        self._encode(source)
        self._binding = self._bound()

    def step(self) -> Step:
        run(self._backend.decoder.run_with_iobinding, self._binding)
        return self._advance(
            Step(self._next_token.read().copy(), self._log_probability.read().copy())
        )

    def step_choosing(self, choose: Callable[[NDArray[np.float32]], Step]) -> Step:
        if self._logits is None:
            spec = _one(self._graph.outputs, "logits")
            shape = (*self._token.read().shape, self._backend.manifest.model.target_vocab_size)
            self._logits = HostBuffer(shape, DTYPES[spec.dtype])
            self._logits_binding = self._bound()
            self._logits.bind_output(self._logits_binding, spec.name)
        run(self._backend.decoder.run_with_iobinding, self._logits_binding)
        return self._advance(choose(self._logits.read()[:, -1].astype(np.float32, copy=False)))

    def keep(self, rows: NDArray[np.intp]) -> None:
        used = int(self._position.read()[0])
        for buffer in (self._source_mask, self._token, self._position):
            buffer.keep(rows)
        for buffer in (self._next_token, self._log_probability):
            buffer.keep(rows)
        for buffer in self._cross.values():
            buffer.keep(rows)
        for buffer in self._caches.values():
            buffer.keep(rows, used)
        self._binding, self._logits = self._bound(), None

    def close(self) -> None:
        """Buffers are freed when nobody has them any more."""

    def _advance(self, step: Step) -> Step:
        batch, queries = self._token.read().shape
        self._position.write(self._position.read() + queries)
        if queries > 1:  # the prompt; from here on a token at a time
            self._token = HostBuffer((batch, 1), np.int64)
            self._binding, self._logits = self._bound(), None
        self._token.write(step.tokens[:, None])
        return step

    def _encode(self, source: NDArray[Any]) -> None:
        graph = self._backend.manifest.encoder
        session = self._backend.encoder
        dtype = np.float32 if source.dtype == np.float32 else np.int64
        source_buffer = HostBuffer(source.shape, dtype)
        source_buffer.write(source)
        binding = session.io_binding()
        for tensor in graph.inputs:
            buffer = source_buffer if tensor.role == "source" else self._source_mask
            buffer.bind_input(binding, tensor.name)
        for tensor in graph.outputs:
            self._cross[tensor.role, tensor.layer].bind_output(binding, tensor.name)
        run(session.run_with_iobinding, binding)

    def _bound(self) -> onnxruntime.IOBinding:
        """Every buffer but the logits bound at its address and present shape."""
        binding = self._backend.decoder.io_binding()
        single: dict[Role, HostBuffer] = {
            "token": self._token,
            "position": self._position,
            "source_mask": self._source_mask,
            "next_token": self._next_token,
            "next_log_probability": self._log_probability,
        }
        for tensor in self._graph.inputs:
            slot = (tensor.role, tensor.layer)
            buffer = single.get(tensor.role) or self._cross.get(slot) or self._caches[slot]
            buffer.bind_input(binding, tensor.name)
        for tensor in self._graph.outputs:
            if tensor.role in ("present_key", "present_value"):
                past: Role = "past_key" if tensor.role == "present_key" else "past_value"
                self._caches[past, tensor.layer].bind_output(binding, tensor.name)
            elif tensor.role in single:
                single[tensor.role].bind_output(binding, tensor.name)
        return binding


def _one(tensors: tuple[TensorSpec, ...], role: Role) -> TensorSpec:
    return next(tensor for tensor in tensors if tensor.role == role)


def _cache_dtype(bundle: Bundle) -> type[np.generic]:
    name = _one(bundle.manifest.decoder.inputs, "past_key").dtype
    if name not in DTYPES:
        raise BackendError(
            f"{bundle.directory}: a bundle in {name} cannot run on ONNX Runtime, which has no "
            f"kernels for it: expected {' or '.join(DTYPES)}"
        )
    return DTYPES[name]
