"""ONNX Runtime on the CPU. See `interface.Backend`.

x86 CPUs without VNNI add two 8-bit products in 16 bits, which may saturate. ONNX Runtime's exact
kernels take about twice the time on every x86 CPU, so they are used only if a probe shows that they
are needed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ...format.bundle import Bundle
from ...format.contract import Change, Role, Slot
from ..interface import BackendError, Limits, no_attention
from ..rows import SOURCE_MULTIPLE
from .cpu_state import CACHED_TOKENS, HostState
from .sessions import open_session, run

PROBE = (
    b'\x08\x07:a\n\x18\n\x01x\n\x01w\x12\x01y"\rMatMulInteger\x12\nsaturation*\x0f\x08\x04\x08\x01'
    b"\x10\x03B\x01wJ\x04\x7f\x7f\x7f\x7fZ\x13\n\x01x\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n"
    b"\x02\x08\x04b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00"
    b"\x10\r"
)
"""The graph y = MatMulInteger(x, w) (opset 13), with x uint8 [1, 4] and w int8 [4, 1] of 127s."""


@functools.cache
def saturates() -> bool:
    """Return whether this CPU's 8-bit products saturate; takes half a millisecond."""
    session = onnxruntime.InferenceSession(PROBE, providers=["CPUExecutionProvider"])
    (found,) = session.run(["y"], {"x": np.full((1, 4), 255, np.uint8)})
    return int(np.asarray(found).item()) != 4 * 255 * 127


def session_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Return the options of a session with its own threads, which spin only during runs.

    If the decoder's threads spun longer, the encoder would take up to 1.5 times as long when there
    are as many threads as cores (docs/speed.md). A common thread pool is no alternative: once there
    is one, every other session of the process, including the user's, must be configured to use it.

    Args:
        threads: number of threads; None: all cores
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Activations are not rounded with weight-only quantization. Nodes with an explicit level keep
    # it.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


class OnnxRuntimeBackend:
    """The backend of ONNX Runtime on the CPU.

    Attributes:
        sessions: the sessions of the encoder, the decoder step or both, and of the attention graph
            after its first use
    """

    def __init__(self, bundle: Bundle, *, threads: int | None) -> None:
        self.manifest = bundle.manifest
        self._bundle, self._threads, self._opening = bundle, threads, threading.Lock()
        _check_types(bundle)
        self.sessions = {name: self._session(name) for name in self.manifest.model_graphs}

    @property
    def encoder(self) -> onnxruntime.InferenceSession:
        """The session of the encoder."""
        return self.sessions["encoder"]

    @property
    def decoder(self) -> onnxruntime.InferenceSession:
        """The session of the decoder step."""
        return self.sessions["decoder"]

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        spec, options = self.manifest.graphs[graph], self._options(self._threads)
        return open_session(self._bundle.path(spec.file), spec, options, "CPUExecutionProvider")

    def _options(self, threads: int | None) -> onnxruntime.SessionOptions:
        return session_options(threads)

    @property
    def limits(self) -> Limits:
        """The limits on batches."""
        return Limits(encoded=CACHED_TOKENS, source_multiple=SOURCE_MULTIPLE)

    def rows_that_fit(self, source: int) -> None:
        """Return None: ONNX Runtime does not report its memory needs."""

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
    ) -> HostState:
        """Encode a batch and allocate `capacity` target positions for each row."""
        return HostState(
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
        """Return the encoder's outputs by tensor name."""
        graph = self.manifest.graphs["encoder"]
        names = [tensor.name for tensor in graph.outputs]
        values: dict[Role, NDArray[Any]] = {"source": source, "source_mask": source_mask}
        values["token_type"] = np.zeros_like(source) if token_type is None else token_type
        feeds = {tensor.name: values[tensor.role] for tensor in graph.inputs}
        return dict(zip(names, run(self.encoder.run, names, feeds), strict=True))

    def attention(self, inputs: Mapping[Role, NDArray[Any]]) -> dict[Role, NDArray[np.float32]]:
        """Run the attention graph and return its outputs."""
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
        """Return the logits that follow each prefix of a target."""
        encoder = self.manifest.model.has_encoder
        encoded = self.encode(source, source_mask) if encoder else {}
        return self.score_encoded(encoded, source_mask, target)

    def score_encoded(
        self,
        encoded: Mapping[str, NDArray[Any]],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Return the logits that follow each prefix of a target, given encoder outputs.

        Args:
            encoded: result of `encode`; empty for a decoder-only model
        """
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
        """Do nothing: sessions are freed with their last reference."""


def open_backend(bundle: Bundle, threads: int | None) -> OnnxRuntimeBackend:
    """Open the backend.

    Raises:
        BackendError: ONNX Runtime cannot run the bundle's graphs.
    """
    return OnnxRuntimeBackend(bundle, threads=threads)


def _check_types(bundle: Bundle) -> None:
    """Check that ONNX Runtime has kernels for the number formats of the graphs.

    Raises:
        BackendError: there are no kernels for one of them.
    """
    for graph in bundle.manifest.model_graphs.values():
        for tensor in (*graph.inputs, *graph.outputs):
            if tensor.dtype == "bfloat16":
                raise BackendError(
                    f"{bundle.directory}: a bundle in {tensor.dtype} cannot run on ONNX Runtime, "
                    "which has no kernels for it: expected float32 or float16"
                )
