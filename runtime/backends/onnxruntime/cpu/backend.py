"""ONNX Runtime on the processor. See `interface.Backend`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ....format.bundle import Bundle
from ....format.contract import Change, GraphSpec, Owner
from ...errors import BackendError
from ...interface import Limits
from ..sessions import open_session, run
from .state import BoundState

DTYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
}
"""The types of weights, caches and logits that run."""


class OnnxRuntimeBackend:
    """Two sessions, encoder and decoder step."""

    def __init__(self, bundle: Bundle, *, threads: int | None) -> None:
        self.manifest = bundle.manifest
        self.dtype = _cache_dtype(bundle)
        self.encoder = self._session(bundle, "encoder", threads, spin=False)
        self.decoder = self._session(bundle, "decoder", threads, spin=True)

    def _session(
        self, bundle: Bundle, graph: str, threads: int | None, *, spin: bool
    ) -> onnxruntime.InferenceSession:
        options = self._options(threads, spin=spin)
        spec = bundle.manifest.graphs[graph]
        return open_session(bundle.path(spec.file), spec, options, "CPUExecutionProvider")

    def _options(self, threads: int | None, *, spin: bool) -> onnxruntime.SessionOptions:
        """Each session has its own threads. Those of the encoder must not spin while the decoder
        works, which would double the time of a step when there are as many threads as cores. A
        common pool would be 5 % faster, but once ONNX Runtime has one, every other session of the
        process, including the user's, must be configured to use it, or fails."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        # Where a graph's weights alone are integers, the activations are not rounded behind its
        # back. Nodes that state their own level keep it.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        return options

    @property
    def limits(self) -> Limits:
        return Limits()

    def rows_that_fit(self, source: int) -> None:
        """ONNX Runtime does not say how much memory it will need."""

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
    ) -> BoundState:
        return BoundState(
            (self.encoder, self.decoder),
            self.manifest,
            self.dtype,
            source,
            source_mask,
            prompt,
            capacity,
            width,
        )

    def encode(
        self, source: NDArray[Any], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        graph = self.manifest.graphs["encoder"]
        names = [tensor.name for tensor in graph.outputs]
        feeds = {
            tensor.name: source_mask if tensor.owner is Owner.MASK else source
            for tensor in graph.inputs
        }
        return dict(zip(names, run(self.encoder.run, names, feeds), strict=True))

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        model = self.manifest.model
        encoder, decoder = self.manifest.graphs["encoder"], self.manifest.graphs["decoder"]
        batch, length = target.shape
        encoded = self.encode(source, source_mask)
        values: dict[Any, NDArray[Any]] = {
            tensor.slot: encoded[tensor.name] for tensor in encoder.outputs
        }
        values |= {
            ("token", None): target,
            ("position", None): np.zeros(batch, np.int64),
            ("source_mask", None): source_mask,
        }
        cache = np.zeros((batch, model.num_heads, length, model.head_size), self.dtype)
        feeds = {
            tensor.name: cache if tensor.change is Change.APPENDED else values[tensor.slot]
            for tensor in decoder.inputs
        }
        logits = decoder.output("logits").name
        return np.asarray(run(self.decoder.run, [logits], feeds)[0])

    def close(self) -> None:
        """A session frees what it holds when the last reference to it is gone."""


def open_backend(bundle: Bundle, threads: int | None) -> OnnxRuntimeBackend:
    """
    Raises:
        BackendError: ONNX Runtime cannot run the bundle's graphs.
    """
    return OnnxRuntimeBackend(bundle, threads=threads)


def _cache_dtype(bundle: Bundle) -> type[np.generic]:
    decoder: GraphSpec = bundle.manifest.graphs["decoder"]
    name = decoder.input("past_key").dtype
    if name not in DTYPES:
        raise BackendError(
            f"{bundle.directory}: a bundle in {name} cannot run on ONNX Runtime, which has no "
            f"kernels for it: expected {' or '.join(DTYPES)}"
        )
    return DTYPES[name]
