"""ONNX Runtime on the processor. See `interface.Backend`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ....format.bundle import Bundle
from ....format.contract import Change, Role, Slot
from ...errors import BackendError, no_attention
from ...interface import Limits
from ...places import SOURCE_MULTIPLE
from ..sessions import open_session, run
from .saturation import saturates
from .state import CACHED_TOKENS, BoundState


class OnnxRuntimeBackend:
    """
    Attributes:
        sessions: for each graph that computes the model: encoder, decoder step or both; and for
            that of attention, once it has been needed
    """

    def __init__(self, bundle: Bundle, *, threads: int | None) -> None:
        self.manifest = bundle.manifest
        self._bundle, self._threads, self._opening = bundle, threads, threading.Lock()
        _check_types(bundle)
        self.sessions = {name: self._session(name) for name in self.manifest.model_graphs}

    @property
    def encoder(self) -> onnxruntime.InferenceSession:
        return self.sessions["encoder"]

    @property
    def decoder(self) -> onnxruntime.InferenceSession:
        return self.sessions["decoder"]

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        spec, options = self.manifest.graphs[graph], self._options(self._threads)
        return open_session(self._bundle.path(spec.file), spec, options, "CPUExecutionProvider")

    def _options(self, threads: int | None) -> onnxruntime.SessionOptions:
        return session_options(threads)

    @property
    def limits(self) -> Limits:
        return Limits(encoded=CACHED_TOKENS, source_multiple=SOURCE_MULTIPLE)

    def rows_that_fit(self, source: int) -> None:
        """ONNX Runtime does not say how much memory it will need."""

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
    ) -> BoundState:
        return BoundState(
            (self.sessions.get("encoder"), self.decoder),
            self.manifest,
            source,
            source_mask,
            prompt,
            capacity,
            width,
            prompt_lengths,
        )

    def encode(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        token_type: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        graph = self.manifest.graphs["encoder"]
        names = [tensor.name for tensor in graph.outputs]
        values: dict[Role, NDArray[Any]] = {"source": source, "source_mask": source_mask}
        values["token_type"] = np.zeros_like(source) if token_type is None else token_type
        feeds = {tensor.name: values[tensor.role] for tensor in graph.inputs}
        return dict(zip(names, run(self.encoder.run, names, feeds), strict=True))

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        graph = self.manifest.graphs.get("attention")
        if graph is None:
            raise BackendError(no_attention(self.manifest.name))
        with self._opening:
            if "attention" not in self.sessions:
                self.sessions["attention"] = self._session("attention")
        feeds = {tensor.name: inputs[tensor.role] for tensor in graph.inputs}
        names = [tensor.name for tensor in graph.outputs]
        found = run(self.sessions["attention"].run, names, feeds)
        return {tensor.role: values for tensor, values in zip(graph.outputs, found, strict=True)}

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        encoder = self.manifest.model.has_encoder
        encoded = self.encode(source, source_mask) if encoder else {}
        return self.score_encoded(encoded, source_mask, target)

    def score_encoded(
        self,
        encoded: Mapping[str, NDArray[Any]],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """As `score`, of sources that `encode` has encoded; nothing of a decoder alone."""
        decoder = self.manifest.graphs["decoder"]
        batch, length = target.shape
        values: dict[Slot, NDArray[Any]] = {
            Slot("token"): target,
            Slot("position"): np.zeros(batch, np.int64),
            Slot("read"): np.broadcast_to(np.arange(length), (batch, length)),
            Slot("source_mask"): source_mask,
        }
        if self.manifest.model.has_encoder:
            outputs = self.manifest.graphs["encoder"].outputs
            values |= {tensor.slot: encoded[tensor.name] for tensor in outputs}
        for tensor in decoder.inputs:
            if tensor.change is Change.APPENDED:
                _, heads, _, size = tensor.shape
                values[tensor.slot] = np.zeros((batch, int(heads), length, int(size)), tensor.dtype)
        feeds = {tensor.name: values[tensor.slot] for tensor in decoder.inputs}
        logits = decoder.output("logits").name
        return np.asarray(run(self.decoder.run, [logits], feeds)[0])

    def close(self) -> None:
        """A session frees what it holds when the last reference to it is gone."""


def session_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Each session has its own threads. They spin while it works, and no longer: the decoder's
    would make the encoder take up to one and a half times as long when there are as many threads as
    cores (docs/speed.md). A common pool would serve as well, but once ONNX Runtime has one, every
    other session of the process, including the user's, must be configured to use it, or fails.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Where a graph's weights alone are integers, the activations are not rounded behind its back.
    # Nodes that state their own level keep it.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def open_backend(bundle: Bundle, threads: int | None) -> OnnxRuntimeBackend:
    """
    Raises:
        BackendError: ONNX Runtime cannot run the bundle's graphs.
    """
    return OnnxRuntimeBackend(bundle, threads=threads)


def _check_types(bundle: Bundle) -> None:
    """
    Raises:
        BackendError: ONNX Runtime has no kernels for the numbers of a graph.
    """
    for graph in bundle.manifest.model_graphs.values():
        for tensor in (*graph.inputs, *graph.outputs):
            if tensor.dtype == "bfloat16":
                raise BackendError(
                    f"{bundle.directory}: a bundle in {tensor.dtype} cannot run on ONNX Runtime, "
                    "which has no kernels for it: expected float32 or float16"
                )
