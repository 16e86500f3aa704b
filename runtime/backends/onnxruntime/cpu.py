"""ONNX Runtime on the CPU. See `interface.Backend`.

x86 CPUs without VNNI add two 8-bit products in 16 bits, which may saturate. ONNX Runtime's exact
kernels take about twice the time, so they are used only if a probe shows that they are needed.
Kernels of 4-bit weights add in another order for one row than for several on some CPUs; there, two
rows are computed instead of one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ...format.bundle import Bundle
from ...format.contract import SHORTLIST_GRAPHS, GraphName, Owner, Slot
from ...format.onnx_graph import WEIGHTS_FILE
from ..interface import BackendError, Encoded
from ..processor import ProcessorBackend
from ..rows import (
    LEAST_OF_THREAD,
    POSITION_MULTIPLE,
    TOKENS_MULTIPLE,
    BatchShortlist,
    padded_length,
    part_of,
    unwritten,
)
from .cpu_state import LOGITS_AT_ONCE, HostState
from .sessions import open_session, releasing_pages, run

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


_WEIGHTS, _SCALES = (bytes(range(256)) * 2)[:448], np.ones(28, np.float32).tobytes()
ROWS_PROBE = (
    b'\x08\x08:\xf1\x05\nt\n\x01x\n\x01w\n\x01s\x12\x01y"\x0bMatMulNBits*\t\n\x01K\x18\xe0'
    b"\x01\xa0\x01\x02*\x08\n\x01N\x18\x04\xa0\x01\x02*\x15\n\x0eaccuracy_level\x18\x04\xa0"
    b"\x01\x02*\x0b\n\x04bits\x18\x04\xa0\x01\x02*\x11\n\nblock_size\x18 \xa0\x01\x02:\rcom.m"
    b"icrosoft\x12\x04rows*\xce\x03\x08\x04\x08\x07\x08\x10\x10\x02B\x01wJ\xc0\x03"
    + _WEIGHTS
    + b"*{\x08\x04\x08\x07\x10\x01B\x01sJp"
    + _SCALES
    + b"Z\x12\n\x01x\x12\r\n\x0b\x08\x01\x12\x07\n\x00\n\x03\x08\xe0\x01b\x11\n\x01y\x12\x0c\n"
    b"\n\x08\x01\x12\x06\n\x00\n\x02\x08\x04B\x04\n\x00\x10\x15B\x11\n\rcom.microsoft\x10\x01"
)
"""The graph y = MatMulNBits(x, w, s), with x float32 [rows, 224] and 4-bit weights in blocks of 32,
of 4 outputs, with scales of 1."""


@functools.cache
def single_rows_differ() -> bool:
    """Return whether this CPU multiplies one row by 4-bit weights otherwise than several rows."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(ROWS_PROBE, options, providers=["CPUExecutionProvider"])
    rows = np.sin(np.arange(16 * 224, dtype=np.float32)).reshape(16, 224)
    together = np.asarray(session.run(["y"], {"x": rows})[0])
    alone = [np.asarray(session.run(["y"], {"x": row[None]})[0]) for row in rows]
    return not np.array_equal(together, np.concatenate(alone))


def session_options(threads: int | None) -> onnxruntime.SessionOptions:
    """Return the options of a session with its own threads, by default one for each core.

    They spin only during runs: otherwise the encoder would take up to 1.5 times as long when there
    are as many threads as cores (docs/speed.md). A common thread pool is no alternative: once there
    is one, every other session of the process, including the user's, must be configured to use it.
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
        # With it, ONNX Runtime adds zero points of a wrong shape to weights of DequantizeLinear.
        options.add_session_config_entry(
            "optimization.disable_specified_optimizers", "QDQS8ToU8Transformer"
        )
    return options


class OnnxRuntimeBackend(ProcessorBackend):
    """The backend of ONNX Runtime on the CPU."""

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        super().__init__(bundle, threads)
        _check_types(bundle)
        graphs = self.manifest.model_graphs
        opened: list[str] = [*graphs]
        if self.manifest.shortlist is not None:  # few calls read all logits
            opened = [*(name for name in graphs if name != "decoder"), *sorted(SHORTLIST_GRAPHS)]
        file = next(iter(graphs.values())).file
        with releasing_pages(bundle.path(file).with_name(WEIGHTS_FILE)):
            self.open_sessions(opened)

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        spec, options = self.manifest.graphs[graph], self._options(self._threads)
        return open_session(self._bundle.path(spec.file), spec, options, "CPUExecutionProvider")

    def _outputs(self, graph: str, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[Any]:
        found: list[Any] = run(self.session(graph).run, names, feeds)
        return found

    @functools.cached_property
    def _least_rows(self) -> int:
        """The number of rows that the decoder must compute at least to be batch-invariant."""
        blocks = self.manifest.precision == "int4" and self.manifest.target == "cpu"
        return 2 if blocks and single_rows_differ() else 1

    def _options(self, threads: int | None) -> onnxruntime.SessionOptions:
        return session_options(threads)

    def start(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
        allowed: Sequence[NDArray[np.int64]] | None = None,
    ) -> HostState:
        """Encode a batch and allocate `capacity` target positions for each row."""
        has_encoder = "encoder" in self.manifest.model_graphs
        encoder = self.session("encoder") if has_encoder else None
        most = self.manifest.model.max_target_positions
        graph: GraphName = "decoder" if allowed is None else "shortlist_decoder"
        shortlist, least_rows = None, self._least_rows
        if allowed is not None:
            vocabulary, least = self.manifest.model.target_vocab_size, TOKENS_MULTIPLE
            weights = self.manifest.graphs["shortlist_weights"].outputs
            # The order of sums of integers does not matter. Where ONNX Runtime multiplies by
            # floating point numbers that are inputs, it adds in another order for one row than for
            # several.
            if not any(tensor.dtype == "int8" for tensor in weights):
                least, least_rows = LEAST_OF_THREAD * (self._threads or os.cpu_count() or 1), 2
            shortlist = BatchShortlist(self._shortlist_weights, allowed, vocabulary, least)
        return HostState(
            (encoder, self.session(graph)),
            self.manifest,
            graph,
            source,
            source_mask,
            prompt,
            padded_length(capacity, POSITION_MULTIPLE, most),
            width,
            prompt_lengths,
            shortlist,
            least_rows=least_rows,
        )

    def _shortlist_weights(self, tokens: NDArray[np.int64]) -> dict[Slot, NDArray[Any]]:
        return self._run("shortlist_weights", {Slot("shortlist"): tokens})

    def check_alignment(self) -> None:
        """Do nothing: the alignment graph runs here."""

    def align(
        self, encoded: Mapping[Slot, NDArray[Any]], token: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Run the alignment graph on one source; see `interface.Backend`."""
        found = self._run("alignment", {**encoded, Slot("token"): token})
        return found[Slot("logits")], found[Slot("cross_attention")]

    def score(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
    ) -> NDArray[Any]:
        """Return the logits that follow prefixes of a target."""
        encoded: Encoded = source if isinstance(source, Mapping) else {}
        if not isinstance(source, Mapping) and self.manifest.model.has_encoder:
            encoded = self.encode(source, source_mask)
        decoder = self.manifest.graphs["decoder"]
        if positions is None:
            positions = np.arange(target.shape[1])
        target = target[:, : positions[-1] + 1]
        batch, length = target.shape
        computes_wanted = any(tensor.role == "read" for tensor in decoder.inputs)
        part = max(1, LOGITS_AT_ONCE // self.manifest.model.target_vocab_size)
        if computes_wanted or batch * length <= part:
            part = length
        elif batch > 1:  # parts of several rows are not what GroupQueryAttention computes
            shape = (batch, len(positions), self.manifest.model.target_vocab_size)
            scored = np.empty(shape, np.dtype(decoder.output("logits").dtype))
            at_once = max(1, part // length)
            for first in range(0, batch, at_once):
                rows = slice(first, first + at_once)
                scored[rows] = self.score(
                    part_of(encoded, rows), source_mask[rows], target[rows], positions
                )
            return scored
        values: dict[Slot, NDArray[Any]] = {
            Slot("read"): np.tile(positions, (batch, 1)),
            Slot("source_mask"): source_mask,
        }
        if self.manifest.model.has_encoder:
            outputs = self.manifest.graphs["encoder"].outputs
            values |= {tensor.slot: encoded[tensor.name] for tensor in outputs}
        of_rows = [tensor for tensor in decoder.inputs if tensor.owner is Owner.DECODER_ROW]
        values |= {tensor.slot: unwritten(tensor, batch, length) for tensor in of_rows}
        caches = [tensor.slot for tensor in of_rows]
        found = []
        for first in range(0, length, part):
            last = min(first + part, length)
            values[Slot("token")] = target[:, first:last]
            values[Slot("position")] = np.full(batch, first, np.int64)
            feeds = {tensor.name: values[tensor.slot] for tensor in decoder.inputs}
            if batch * (last - first) < self._least_rows:
                feeds = {name: np.repeat(v, self._least_rows, axis=0) for name, v in feeds.items()}
            kept = [t for t in decoder.outputs if t.memory in caches and last < length]
            names = [decoder.output("logits").name, *(tensor.name for tensor in kept)]
            logits, *written = run(self.session("decoder").run, names, feeds)
            if len(positions) < length and not computes_wanted:
                own = positions[(positions >= first) & (positions < last)]
                logits = logits[:, own - first]
            found.append(logits[:batch])
            values |= {t.memory: cache[:batch] for t, cache in zip(kept, written, strict=True)}
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


open_backend = OnnxRuntimeBackend
"""Opens the backend, or raises a BackendError if it cannot run the bundle's graphs."""


def _check_types(bundle: Bundle) -> None:
    for graph in bundle.manifest.model_graphs.values():
        for tensor in (*graph.inputs, *graph.outputs):
            if tensor.dtype == "bfloat16":
                raise BackendError(
                    f"{bundle.directory}: a bundle in {tensor.dtype} cannot run on ONNX Runtime, "
                    "which has no kernels for it: expected float32 or float16"
                )
