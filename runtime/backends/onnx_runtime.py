"""ONNX Runtime, on the processor or through its CUDA provider.

Every buffer of a batch is allocated once and bound by address. The caches are bound as input and
output at the same address, which makes `TensorScatter` write in place; nothing is bound again
until rows leave the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ..bundle import Bundle
from ..manifest import GraphSpec, Role, TensorSpec
from .errors import BackendError
from .interface import Step
from .memory import Buffer, DeviceBuffer, HostBuffer

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}


class OnnxRuntimeBackend:
    """Two sessions, encoder and decoder step. See `interface.Backend`."""

    def __init__(self, bundle: Bundle, *, device: str, threads: int | None) -> None:
        self.manifest = bundle.manifest
        self.device = device
        self.dtype = _cache_dtype(bundle)
        if PROVIDERS[device] not in onnxruntime.get_available_providers():
            raise BackendError(
                f"onnxruntime {onnxruntime.__version__} has no {PROVIDERS[device]}: use the "
                "backend onnxruntime, or, on a machine with an NVIDIA GPU, replace the package: "
                "pip uninstall onnxruntime; pip install 'dragoman[cuda]'"
            )
        self.encoder = self._session(bundle, bundle.manifest.encoder, threads, spin=False)
        self.decoder = self._session(bundle, bundle.manifest.decoder, threads, spin=True)

    def _session(
        self, bundle: Bundle, graph: GraphSpec, threads: int | None, *, spin: bool
    ) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Each session has threads of its own. Those of the encoder must not spin while the decoder
        # works: on as many cores as threads that doubles the time of a step.
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        try:
            return onnxruntime.InferenceSession(
                str(bundle.path(graph.file)), options, providers=[PROVIDERS[self.device]]
            )
        except Exception as error:  # the library raises a dozen types that share no other base
            raise BackendError(
                f"{bundle.path(graph.file)}: onnxruntime {onnxruntime.__version__} cannot load "
                f"this graph: {error}"
            ) from error

    def start(
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_], capacity: int
    ) -> BoundState:
        return BoundState(self, source, source_mask, capacity)

    def encode(
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        names = [tensor.name for tensor in self.manifest.encoder.outputs]
        feeds = {}
        for tensor in self.manifest.encoder.inputs:
            feeds[tensor.name] = source if tensor.role == "source" else source_mask
        return dict(zip(names, self.encoder.run(names, feeds), strict=True))

    def score(
        self,
        source: NDArray[np.int64],
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
        return np.asarray(self.decoder.run([logits], feeds)[0])


class BoundState:
    """One batch. See `interface.DecodingState`."""

    def __init__(
        self,
        backend: OnnxRuntimeBackend,
        source: NDArray[np.int64],
        source_mask: NDArray[np.bool_],
        capacity: int,
    ) -> None:
        self._backend = backend
        self._graph = backend.manifest.decoder
        self._capacity = capacity
        model = backend.manifest.model
        batch, length = source.shape
        heads, size = model.num_heads, model.head_size

        self._source_mask = self._allocate((batch, length), np.bool_)
        self._source_mask.write(source_mask)
        self._token = self._allocate((batch, 1), np.int64)
        self._token.write(np.full((batch, 1), model.start_token_id))
        self._position = self._allocate((batch,), np.int64)
        self._next_token = self._allocate((batch,), np.int64)
        self._log_probability = self._allocate((batch,), np.float32)
        self._cross: dict[tuple[Role, int | None], Buffer] = {}
        self._caches: dict[tuple[Role, int | None], Buffer] = {}
        for tensor in self._graph.inputs:
            slot = (tensor.role, tensor.layer)
            # Zeroed: an unwritten position is masked, but NaN would survive the mask.
            if tensor.role in ("cross_key", "cross_value"):
                self._cross[slot] = self._allocate((batch, heads, length, size), backend.dtype)
            elif tensor.role in ("past_key", "past_value"):
                self._caches[slot] = self._allocate((batch, heads, capacity, size), backend.dtype)
        self._encode(source)
        self._bind()

    def step(self) -> Step:
        self._backend.decoder.run_with_iobinding(self._binding)
        return self._advance(self._next_token.read().copy(), self._log_probability.read().copy())

    def step_without(self, token_id: int) -> Step:
        logits_name = _one(self._graph.outputs, "logits").name
        self._binding.bind_output(logits_name, "cpu")
        self._backend.decoder.run_with_iobinding(self._binding)
        logits = self._binding.get_outputs()[-1].numpy()[:, -1].astype(np.float32)
        self._bind()
        normalizer = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
        logits[:, token_id] = -np.inf
        tokens = logits.argmax(1)
        chosen = np.take_along_axis(logits, tokens[:, None], 1)[:, 0]
        return self._advance(tokens, chosen - normalizer)

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
        self._bind()

    def _advance(self, tokens: NDArray[np.int64], log_probabilities: NDArray[np.float32]) -> Step:
        self._token.write(tokens[:, None])
        self._position.write(self._position.read() + 1)
        return Step(tokens, log_probabilities)

    def _allocate(self, shape: tuple[int, ...], dtype: type[np.generic]) -> Buffer:
        kind = HostBuffer if self._backend.device == "cpu" else DeviceBuffer
        return kind(shape, dtype)

    def _encode(self, source: NDArray[np.int64]) -> None:
        graph = self._backend.manifest.encoder
        session = self._backend.encoder
        source_buffer = self._allocate(source.shape, np.int64)
        source_buffer.write(source)
        binding = session.io_binding()
        for tensor in graph.inputs:
            buffer = source_buffer if tensor.role == "source" else self._source_mask
            buffer.bind_input(binding, tensor.name)
        for tensor in graph.outputs:
            self._cross[tensor.role, tensor.layer].bind_output(binding, tensor.name)
        session.run_with_iobinding(binding)

    def _bind(self) -> None:
        """Bind every buffer at its address and present shape."""
        binding = self._backend.decoder.io_binding()
        single: dict[Role, Buffer] = {
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
        self._binding = binding


def _one(tensors: tuple[TensorSpec, ...], role: Role) -> TensorSpec:
    return next(tensor for tensor in tensors if tensor.role == role)


def _cache_dtype(bundle: Bundle) -> type[np.generic]:
    name = _first_cache(bundle).dtype
    if name not in DTYPES:
        raise BackendError(
            f"{bundle.directory}: a bundle in {name} cannot run on ONNX Runtime, which has no "
            f"kernels for it: expected one of {', '.join(DTYPES)}"
        )
    return DTYPES[name]


def _first_cache(bundle: Bundle) -> TensorSpec:
    return _one(bundle.manifest.decoder.inputs, "past_key")
