"""ONNX Runtime's CUDA provider, which runs a bundle's graphs on an NVIDIA GPU.

The provider binds a session to one stream. Batches of a thread share a stream and its sessions, so
that the weights are there once. A workspace has a binding for each size of batch.

When the provider sees the number of a CUDA graph for the first time in a thread, it runs the model
twice without a graph, captures a third run, and launches the capture. A step must therefore be
idempotent, so tokens and states are copied to its inputs only after the run.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from ...format.bundle import Bundle
from ...format.manifest import Manifest
from ...format.model_spec import ModelSpec
from ..cuda import Device, find_gpu
from ..cuda.backend import DeviceBackend
from ..cuda.layout import (
    SOURCE_STEP,
    Addresses,
    Sizes,
    fed_back,
    memory_slot,
    rounded_up,
    shape_of,
    size_of,
)
from ..cuda.workspace import StepCounter, Stream, Workspace
from ..interface import BackendError
from .sessions import open_session, run

log = logging.getLogger(__name__)

PROVIDER = "CUDAExecutionProvider"

CAPACITY_STEP = 64
"""Target positions are rounded up to sizes of this many positions.

Every step attends to all of them; on a GPU, this costs less than a graph for every length."""


ACTIVATIONS = 16
"""Numbers that an encoder computes and holds at a time for a source position, relative to the size
of a hidden state."""


class PositionRounding:
    """Rounds sizes up within the positions of a model; implements `layout.Rounding`."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        """Return the padded sizes to allocate for a new batch, or for a batch to join another."""
        return Sizes(
            0,
            rounded_up(sources),
            max(1, min(rounded_up(source, SOURCE_STEP), self._model.max_source_positions)),
            min(rounded_up(capacity, CAPACITY_STEP), self._model.max_target_positions),
            width,
        )

    def after(self, present: Sizes, sources: int) -> Sizes:
        """Return the sizes of a batch with this number of remaining sources."""
        return present._replace(sources=rounded_up(sources))


NOT_CAPTURED = -1
"""The number of a run that is neither captured nor launched as a CUDA graph."""


@dataclass(frozen=True)
class Sessions:
    """The sessions that run in one stream."""

    encoder: Any
    decoder: Any
    candidates: Any
    """`encoder`, `decoder` and `candidates`: sessions of ONNX Runtime; None: the bundle has no such
    graph."""
    captures: bool
    """Whether runs of the decoder can be captured as CUDA graphs."""
    synchronous: bool = False
    """Whether each run is awaited, since nodes of the decoder run on the processor."""


OpenSessions = Callable[[int], Sessions]
"""Function that opens the sessions for a stream."""


def open_sessions(
    bundle: Bundle, device: Device, stream: int, *, allow_fallback: bool = False
) -> Sessions:
    """Open sessions that enqueue their work in a stream of a GPU.

    The provider does not capture a graph with control flow, which runs node by node, nor one of
    which it would run more than shapes on the processor, which is refused unless it is allowed.
    """
    graphs = bundle.manifest.graphs
    encoder = _session(bundle, device, stream, "encoder") if "encoder" in graphs else None
    candidates = _session(bundle, device, stream, "candidates") if "candidates" in graphs else None
    if "decoder" not in graphs:
        return Sessions(encoder, None, candidates, captures=False)
    try:
        decoder = _session(bundle, device, stream, "decoder", captures=True)
        return Sessions(encoder, decoder, candidates, captures=True)
    except BackendError as error:
        if NO_CAPTURE not in str(error):
            raise
        decoder = _session(bundle, device, stream, "decoder")
        nodes = _on_processor(decoder)
        file = bundle.path(graphs["decoder"].file)
        if nodes and not allow_fallback:
            raise BackendError(
                f"{file}: expected a decoder that runs on the GPU, found {nodes}; upgrade "
                "onnxruntime-gpu, use the backend onnxruntime, or allow it with --allow-fallback "
                "(allow_fallback=True), which is slow"
            ) from error
        if nodes:
            log.warning("%s: each step runs %s on the processor, which is slow", file, nodes)
        log.info("%s: decoding without CUDA graphs: %s", bundle.directory, str(error))
        return Sessions(encoder, decoder, candidates, captures=False, synchronous=bool(nodes))


NO_CAPTURE = "cannot use the graph capture feature"
"""The words of ONNX Runtime where it does not capture a graph."""

SHAPE_OPERATORS = frozenset(
    {"Add", "Cast", "Concat", "Div", "Gather", "Max", "Min", "Mul", "Range", "ReduceMax"}
    | {"Reshape", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"}
)
"""Operators of shapes, which the provider leaves to the processor although it has kernels."""


def _on_processor(session: Any) -> str:
    """Name the nodes that the processor runs, for which tensors are copied, other than shapes."""
    nodes = [
        f"{node.name} ({node.op_type})"
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if part.ep_name != PROVIDER and node.op_type not in SHAPE_OPERATORS
    ]
    if not nodes:
        return ""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return (
        f"nodes without a CUDA kernel in onnxruntime {onnxruntime.__version__}: "
        f"{', '.join(nodes[:3])}{more}"
    )


def run_options(graph: int, *, synchronous: bool = False) -> onnxruntime.RunOptions:
    """Return the options of a run, captured under a number.

    A run with nodes on the processor is synchronous: the next run uses its buffers in host memory
    again, while copies of them may not have ended. Before ONNX Runtime's change 28686 (June 2026),
    runs of a captured graph are synchronous, too.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    options.add_run_config_entry(
        "disable_synchronize_execution_providers", "0" if synchronous else "1"
    )
    return options


def _session(
    bundle: Bundle, device: Device, stream: int, name: str, *, captures: bool = False
) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    provider_options = {
        "device_id": str(device.index),
        "user_compute_stream": str(stream),
        "enable_cuda_graph": "1" if captures else "0",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",  # fp32 is fp32
    }
    graph = bundle.manifest.graphs[name]
    # ONNX Runtime 1.30 and later warn that the provider is not a plugin. The logger is that of the
    # process, whose level cannot be read: afterwards it is the default.
    onnxruntime.set_default_logger_severity(3)
    try:
        session = open_session(
            *(bundle.path(graph.file), graph, options, PROVIDER, provider_options),
            failure=device.failure,
        )
    finally:
        onnxruntime.set_default_logger_severity(2)
    if PROVIDER not in session.get_providers():
        raise BackendError(
            f"onnxruntime {onnxruntime.__version__} cannot load its {PROVIDER}: found no usable "
            f"{', '.join(load_libraries()) or 'CUDA libraries'}: pip install 'dragoman[cuda]', or "
            "use the backend onnxruntime"
        )
    return session


@functools.cache
def load_libraries() -> tuple[str, ...]:
    """Load the libraries of CUDA and cuDNN that pip has installed; return those that fail."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        onnxruntime.preload_dlls()
    for line in printed.getvalue().splitlines():
        log.info("%s", line)
    return tuple(re.findall(r"^Failed to load (\S+):", printed.getvalue(), re.MULTILINE))


MOST_GRAPHS = 256
"""Maximum number of captured graphs of a stream; further sizes run node by node.

The provider frees the memory of captured graphs only with the session."""

MOST_BINDINGS = 64
"""Maximum number of bindings of a workspace; the least recently used makes room."""


class ProviderStream(Stream):
    """A stream, and the sessions that run in it."""

    def __init__(self, device: Device, open_sessions: OpenSessions) -> None:
        super().__init__(device)
        self.captured = 0
        """Number of captures so far, which is also the number of the last graph."""
        self._known = threading.local()
        try:
            with self:
                self.sessions = open_sessions(self.number)
        except BaseException:
            self.close()
            raise

    @property
    def known_here(self) -> set[int]:
        """The numbers of the graphs that the calling thread has captured."""
        known: set[int] = self._known.__dict__.setdefault("graphs", set())
        return known

    def drop(self) -> None:
        """Release the sessions."""
        self.sessions = Sessions(None, None, None, captures=False)


class Graph(NamedTuple):
    """A captured graph: its number, and the options of a run that captures or launches it."""

    number: int
    options: onnxruntime.RunOptions


class ProviderWorkspace(Workspace):
    """The workspace of a batch of `CudaProviderBackend`."""

    def __init__(self, stream: ProviderStream, counter: StepCounter, manifest: Manifest) -> None:
        super().__init__(stream, counter)
        self._provider, self._manifest = stream, manifest
        self._bindings: dict[tuple[str, Sizes], Any] = {}
        self._directly = run_options(NOT_CAPTURED, synchronous=stream.sessions.synchronous)
        self._graphs: dict[Sizes, Graph] = {}

    def run(self, name: str, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the encoder or the selection of candidates, which are not captured."""
        binding = self._bound(name, sizes, addresses)
        self._enqueue(getattr(self._provider.sessions, name), binding, self._directly)

    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Set the sizes of the steps that follow."""
        self._binding, self._sizes = self._bound("decoder", sizes, addresses), sizes
        self._tries = self._provider.sessions.captures and self.may_capture(sizes)
        self._fed_back = fed_back(self._manifest.graphs["decoder"], sizes, addresses)

    def step(self) -> None:
        """Enqueue one decoding step."""
        graph, failure = self._graph(), None
        try:
            if graph is not None:
                failure = self._launch(graph)
            if graph is None or failure is not None:
                self._run(self._directly)
        except BackendError:
            self.failed = True
            raise
        if failure is not None:
            self.capture_failed(self._sizes, failure)
        self._counter.count(captured=graph is not None and failure is None)
        self.feed_back()

    def forget_addresses(self) -> None:
        """Drop bindings and captured graphs."""
        self._bindings.clear()
        self._binding = None
        self._graphs.clear()

    def _graph(self) -> Graph | None:
        graph, stream = self._graphs.get(self._sizes), self._provider
        if graph is not None and graph.number in stream.known_here:
            return graph
        if not self._tries:
            return None
        if stream.captured == MOST_GRAPHS:
            self._counter.log_failure(f"the sessions hold {MOST_GRAPHS} graphs, the maximum")
            self._tries = False
            return None
        stream.captured += 1
        if graph is None:
            graph = Graph(stream.captured, run_options(stream.captured))
            self._graphs[self._sizes] = graph
        return graph

    def _launch(self, graph: Graph) -> str | None:
        try:
            self._run(graph.options)
        except BackendError as error:
            if graph.number in self._provider.known_here:
                raise
            with contextlib.suppress(BackendError):  # the capture may already have ended
                self.device.free_graph(self.device.end_capture(self.stream.number))
            del self._graphs[self._sizes]
            self._tries = False
            return str(error)
        self._provider.known_here.add(graph.number)
        return None

    def _run(self, options: onnxruntime.RunOptions) -> None:
        self._enqueue(self._provider.sessions.decoder, self._binding, options)

    def _enqueue(self, session: Any, binding: Any, options: onnxruntime.RunOptions) -> None:
        run(session.run_with_iobinding, binding, options, failure=self.device.failure)

    def _bound(self, name: str, sizes: Sizes, addresses: Addresses) -> Any:
        self.forget_what_moved()
        key = name, sizes
        if key in self._bindings:
            self._bindings[key] = self._bindings.pop(key)
            return self._bindings[key]
        if len(self._bindings) == MOST_BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        session, graph = getattr(self._provider.sessions, name), self._manifest.graphs[name]
        binding: onnxruntime.IOBinding = session.io_binding()
        gpu = self.device.index
        binds = (binding.bind_input, graph.inputs), (binding.bind_output, graph.outputs)
        for bind, tensors in binds:
            for tensor in tensors:
                dtype, shape = np.dtype(tensor.dtype), shape_of(tensor, sizes)
                bind(tensor.name, "cuda", gpu, dtype, shape, addresses[memory_slot(tensor)])
        self._bindings[key] = binding
        return binding


class CudaProviderBackend(DeviceBackend[ProviderStream]):
    """The backend of ONNX Runtime's CUDA provider."""

    def __init__(self, bundle: Bundle, device: Device, open_sessions: OpenSessions) -> None:
        super().__init__(bundle.manifest, device, PositionRounding(bundle.manifest.model))
        self._open_sessions = open_sessions
        self._streams.append(self._new_stream())  # fails early if the graphs cannot be loaded

    def _row_bytes(self, sizes: Sizes) -> int:
        """Add the encoder's intermediate results, whose memory ONNX Runtime does not report."""
        model, decoder = self.manifest.model, self.manifest.graphs.get("decoder")
        inputs = decoder.inputs if decoder else ()
        dtype = next((t.dtype for t in inputs if t.role == "cross_key"), None)
        shape = (ACTIVATIONS, sizes.source, model.num_heads, model.head_size)
        return super()._row_bytes(sizes) + (size_of(dtype, shape) if dtype else 0)

    def _new_stream(self) -> ProviderStream:
        return ProviderStream(self.device, self._open_sessions)

    def _new_workspace(self, stream: ProviderStream) -> ProviderWorkspace:
        return ProviderWorkspace(stream, self._counter, self.manifest)


def open_backend(
    bundle: Bundle, threads: int | None, gpu: int, *, allow_fallback: bool = False
) -> CudaProviderBackend:
    """Open the backend, or raise a BackendError if there is no provider or no GPU."""
    if PROVIDER not in onnxruntime.get_available_providers():
        raise BackendError(
            f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}: use the backend "
            "onnxruntime, or, on a machine with an NVIDIA GPU, replace the package: "
            "pip uninstall onnxruntime; pip install 'dragoman[cuda]'"
        )
    try:
        find_gpu(gpu)
    except BackendError as error:
        raise BackendError(f"{PROVIDER}: {error}: use the backend onnxruntime") from error
    load_libraries()
    device = Device(gpu)
    opened = functools.partial(open_sessions, bundle, device, allow_fallback=allow_fallback)
    return CudaProviderBackend(bundle, device, opened)
