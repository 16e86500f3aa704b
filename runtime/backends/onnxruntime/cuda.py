"""ONNX Runtime's CUDA provider, which runs a bundle's graphs on an NVIDIA GPU.

Each batch has a workspace with its own sessions, because the provider binds a session to one
stream. A workspace has a binding for each size of batch.

The provider captures a run as a CUDA graph when it sees the graph's number for the first time in a
thread: it runs the model twice without a graph, captures a third run, and launches the capture. A
step must therefore be idempotent, so the selected tokens are copied to its input only after the
run. During a capture, nothing else on the device may allocate memory.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnxruntime

from ...format.bundle import Bundle
from ...format.contract import GraphSpec, Slot
from ...format.manifest import Manifest
from ...format.model_spec import ModelSpec
from ..cuda import Device, find_gpu
from ..cuda.backend import DeviceBackend
from ..cuda.device import FATAL_ERRORS
from ..cuda.layout import Addresses, Sizes, multiple_of, power_of_two, shape_of
from ..cuda.workspace import Workspace
from ..interface import BackendError, DeviceLostError, Limits
from .sessions import open_session, run

log = logging.getLogger(__name__)

PROVIDER = "CUDAExecutionProvider"
CUDA_FAILURE = re.compile(r"CUDA failure (\d+)|CUDA error (\d+)")
"""Pattern of CUDA's error code in the provider's messages."""


def cuda_failure(message: str) -> BackendError | DeviceLostError:
    """Return the exception for a message of the provider."""
    match = CUDA_FAILURE.search(message)
    lost = match is not None and int(match[1] or match[2]) in FATAL_ERRORS.values()
    return DeviceLostError(message) if lost else BackendError(message)


SOURCE_STEP = 16
"""Source lengths are rounded up to multiples of this."""

CAPACITY_STEP = 64
"""Target positions are rounded up to multiples of this.

Every step attends to all of them; on a GPU, this costs less than a graph for every length."""


class PositionRounding:
    """Rounds sizes up within the positions of a model; implements `layout.Rounding`."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        """Return the padded sizes to allocate for a new batch, or for a batch to join another."""
        return Sizes(
            0,
            power_of_two(sources),
            max(1, min(multiple_of(SOURCE_STEP, source), self._model.max_source_positions)),
            min(multiple_of(CAPACITY_STEP, capacity), self._model.max_target_positions),
            width,
        )

    def after(self, present: Sizes, sources: int) -> Sizes:
        """Return the sizes of a batch with this number of remaining sources."""
        return present._replace(sources=power_of_two(sources))


NOT_CAPTURED = -1
"""The number of a run that is neither captured nor launched as a CUDA graph."""


@dataclass(frozen=True)
class Sessions:
    """The sessions that run in one stream.

    Attributes:
        encoder, decoder, candidates: sessions of ONNX Runtime; None: the bundle has no such graph
        captures: whether runs of the decoder can be captured as CUDA graphs
    """

    encoder: Any
    decoder: Any
    candidates: Any
    captures: bool


OpenSessions = Callable[[int], Sessions]
"""Function that opens the sessions for a stream."""


def open_sessions(bundle: Bundle, stream: int) -> Sessions:
    """Open sessions that enqueue their work in a stream.

    The provider does not capture a graph with a node that needs the CPU for more than shapes. Such
    a graph runs node by node.

    Raises:
        BackendError: the provider cannot load the graphs.
    """
    graphs = bundle.manifest.graphs
    encoder = _session(bundle, stream, "encoder") if "encoder" in graphs else None
    candidates = _session(bundle, stream, "candidates") if "candidates" in graphs else None
    if "decoder" not in graphs:
        return Sessions(encoder, None, candidates, captures=False)
    try:
        decoder = _session(bundle, stream, "decoder", captures=True)
        return Sessions(encoder, decoder, candidates, captures=True)
    except BackendError as error:
        decoder = _session(bundle, stream, "decoder")
        log.info("%s: decoding without CUDA graphs: %s", bundle.directory, str(error))
        return Sessions(encoder, decoder, candidates, captures=False)


def run_options(graph: int) -> onnxruntime.RunOptions:
    """Return the options of an asynchronous run, captured under a number.

    Before ONNX Runtime's change 28686 (June 2026), runs of a captured graph are synchronous.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def provider_options(stream: int, *, captures: bool) -> dict[str, str]:
    """Return the options of the provider for sessions in a stream."""
    return {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "enable_cuda_graph": "1" if captures else "0",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",  # fp32 is fp32
    }


def _session(bundle: Bundle, stream: int, name: str, *, captures: bool = False) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised
    graph = bundle.manifest.graphs[name]
    return open_session(
        bundle.path(graph.file),
        graph,
        options,
        PROVIDER,
        provider_options(stream, captures=captures),
        failure=cuda_failure,
    )


MOST_GRAPHS = 256
"""Maximum number of captured graphs of a workspace; further sizes run node by node.

The provider frees the memory of captured graphs only with the session."""


class ProviderWorkspace(Workspace):
    """The workspace of a batch of `CudaProviderBackend`."""

    def __init__(
        self,
        device: Device,
        preparing: threading.RLock,
        manifest: Manifest,
        open_sessions: OpenSessions,
    ) -> None:
        super().__init__(device, preparing)
        self._manifest = manifest
        self._encoder: Any = None
        self._decoder: Any = None
        self._candidates: Any = None
        self._bindings: dict[Sizes, Any] = {}
        self._selections: dict[Sizes, Any] = {}
        self._options = {NOT_CAPTURED: run_options(NOT_CAPTURED)}
        self._graphs: dict[Sizes, int] = {}
        self._captured = 0
        self._known = threading.local()
        try:
            with preparing:
                sessions = open_sessions(self.stream)
        except BaseException:
            self.close()
            raise
        self._encoder, self._decoder = sessions.encoder, sessions.decoder
        self._candidates = sessions.candidates
        self._captures = sessions.captures

    def encode(self, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the encoder."""
        self.forget_what_moved()
        binding = _bound(self._encoder, self._manifest.graphs["encoder"], sizes, addresses)
        _run(self._encoder, binding, self._options[NOT_CAPTURED])

    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Set the sizes of the steps that follow."""
        self.forget_what_moved()
        if sizes not in self._bindings:
            graph = self._manifest.graphs["decoder"]
            self._bindings[sizes] = _bound(self._decoder, graph, sizes, addresses)
        self._sizes = sizes
        self._token, self._chosen = addresses[Slot("token")], addresses[Slot("next_token")]

    def step(self) -> None:
        """Enqueue one decoding step."""
        sizes = self._sizes
        graph = self._graphs.get(sizes, NOT_CAPTURED)
        if (sizes, graph) in self._of_this_thread():
            self._run(sizes, graph)
        else:
            with self.preparing:
                self._first_run(sizes)
        self.device.copy(self._token, self._chosen, 8 * sizes.rows, self.stream)

    def select_candidates(self, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the selection of candidates, which has few nodes and is not captured."""
        options = self._options[NOT_CAPTURED]
        if sizes in self._selections:
            _run(self._candidates, self._selections[sizes], options)
            return
        with self.preparing:  # the provider allocates
            graph = self._manifest.graphs["candidates"]
            binding = _bound(self._candidates, graph, sizes, addresses)
            _run(self._candidates, binding, options)
        self._selections[sizes] = binding

    def forget_addresses(self) -> None:
        """Drop bindings and captured graphs."""
        self._bindings.clear()
        self._selections.clear()
        self._graphs.clear()

    def drop(self) -> None:
        """Release the sessions."""
        self._bindings.clear()
        self._selections.clear()
        self._encoder = self._decoder = self._candidates = None

    def _first_run(self, sizes: Sizes) -> None:
        """Run a step for the first time with these sizes and addresses in this thread."""
        if self._captures and self._captured < MOST_GRAPHS:
            self._captured += 1
            if sizes not in self._graphs:
                self._graphs[sizes] = max(self._options) + 1
                self._options[self._graphs[sizes]] = run_options(self._graphs[sizes])
            try:
                self._run(sizes, self._graphs[sizes])
            except BackendError as error:
                self._give_up_capturing(error)
            else:
                self._of_this_thread().add((sizes, self._graphs[sizes]))
                return
        self._graphs.pop(sizes, None)
        try:
            self._run(sizes, NOT_CAPTURED)
        except BackendError:
            self.failed = True
            raise
        self._of_this_thread().add((sizes, NOT_CAPTURED))

    def _give_up_capturing(self, error: BackendError) -> None:
        with contextlib.suppress(BackendError):  # the capture may already have ended
            self.device.free_graph(self.device.end_capture(self.stream))
        self._captures = False
        self._graphs.clear()
        log.info("decoding without CUDA graphs: %s", str(error))

    def _run(self, sizes: Sizes, graph: int) -> None:
        _run(self._decoder, self._bindings[sizes], self._options[graph])

    def _of_this_thread(self) -> set[tuple[Sizes, int]]:
        if not hasattr(self._known, "runs"):
            self._known.runs = set()
        runs: set[tuple[Sizes, int]] = self._known.runs
        return runs


def _run(session: Any, binding: Any, options: onnxruntime.RunOptions) -> None:
    run(session.run_with_iobinding, binding, options, failure=cuda_failure)


def _bound(session: Any, graph: GraphSpec, sizes: Sizes, addresses: Addresses) -> Any:
    """Bind every tensor to its address."""
    binding: onnxruntime.IOBinding = session.io_binding()
    for tensor in graph.inputs:
        address = addresses[tensor.slot]
        dtype, shape = np.dtype(tensor.dtype), shape_of(tensor, sizes)
        binding.bind_input(tensor.name, "cuda", 0, dtype, shape, address)
    for tensor in graph.outputs:
        dtype, shape = np.dtype(tensor.dtype), shape_of(tensor, sizes)
        binding.bind_output(tensor.name, "cuda", 0, dtype, shape, addresses[tensor.memory])
    return binding


class CudaProviderBackend(DeviceBackend):
    """The backend of ONNX Runtime's CUDA provider."""

    def __init__(self, bundle: Bundle, device: Device, open_sessions: OpenSessions) -> None:
        super().__init__(bundle.manifest, device, PositionRounding(bundle.manifest.model))
        self._open_sessions = open_sessions
        self._free.append(self._new_workspace())  # fails early if the graphs cannot be loaded

    @property
    def limits(self) -> Limits:
        """The limits on batches, which are only the model's."""
        return Limits()

    def rows_that_fit(self, source: int) -> None:
        """Return None: ONNX Runtime does not report its memory needs."""

    def _new_workspace(self) -> ProviderWorkspace:
        return ProviderWorkspace(self._device, self._preparing, self.manifest, self._open_sessions)


def open_backend(bundle: Bundle, threads: int | None) -> CudaProviderBackend:
    """Open the backend.

    Args:
        threads: number of CPU threads, which is ignored

    Raises:
        BackendError: the provider is not installed, or there is no GPU.
    """
    if PROVIDER not in onnxruntime.get_available_providers():
        raise BackendError(
            f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}: use the backend "
            "onnxruntime, or, on a machine with an NVIDIA GPU, replace the package: "
            "pip uninstall onnxruntime; pip install 'dragoman[cuda]'"
        )
    try:
        find_gpu()
    except BackendError as error:
        raise BackendError(f"{PROVIDER}: {error}: use the backend onnxruntime") from error
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries installed by pip
    return CudaProviderBackend(bundle, Device(), partial(open_sessions, bundle))
