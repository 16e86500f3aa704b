"""A workspace of ONNX Runtime: sessions in its stream, and a binding for each size of batch.

The provider captures a run as a CUDA graph when it sees the graph's number for the first time in a
thread: it runs the model twice without a graph, captures a third run, and launches that. A step
must therefore be idempotent, which is why the tokens it chooses are copied to its input here, after
the run. While the provider captures, nothing else on the device may allocate.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import numpy as np
import onnxruntime

from ....format.contract import GraphSpec, Slot
from ....format.manifest import Manifest
from ...cuda import Device
from ...cuda.layout import Addresses, Sizes, shape_of
from ...cuda.workspace import Workspace
from ...errors import BackendError
from ..sessions import run
from .failures import cuda_failure
from .sessions import NOT_CAPTURED, OpenSessions, run_options

log = logging.getLogger(__name__)

MOST_GRAPHS = 256
"""The provider frees the memory of captured graphs only with the session. Beyond this many, new
sizes run node by node."""


class ProviderWorkspace(Workspace):
    """See `backend.CudaProviderBackend`."""

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
        self.forget_what_moved()
        binding = _bound(self._encoder, self._manifest.graphs["encoder"], sizes, addresses)
        _run(self._encoder, binding, self._options[NOT_CAPTURED])

    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        self.forget_what_moved()
        if sizes not in self._bindings:
            graph = self._manifest.graphs["decoder"]
            self._bindings[sizes] = _bound(self._decoder, graph, sizes, addresses)
        self._sizes = sizes
        self._token, self._chosen = addresses[Slot("token")], addresses[Slot("next_token")]

    def step(self) -> None:
        sizes = self._sizes
        graph = self._graphs.get(sizes, NOT_CAPTURED)
        if (sizes, graph) in self._of_this_thread():
            self._run(sizes, graph)
        else:
            with self.preparing:
                self._first_run(sizes)
        self.device.copy(self._token, self._chosen, 8 * sizes.rows, self.stream)

    def select_candidates(self, sizes: Sizes, addresses: Addresses) -> None:
        """Not captured: it has few nodes."""
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
        self._bindings.clear()
        self._selections.clear()
        self._graphs.clear()

    def drop(self) -> None:
        self._bindings.clear()
        self._selections.clear()
        self._encoder = self._decoder = self._candidates = None

    def _first_run(self, sizes: Sizes) -> None:
        """The first run with these sizes and addresses in this thread."""
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
        with contextlib.suppress(BackendError):  # the capture may have ended already
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
    """A binding of every tensor to its address."""
    binding: onnxruntime.IOBinding = session.io_binding()
    for tensor in graph.inputs:
        address = addresses[tensor.slot]
        dtype, shape = np.dtype(tensor.dtype), shape_of(tensor, sizes)
        binding.bind_input(tensor.name, "cuda", 0, dtype, shape, address)
    for tensor in graph.outputs:
        dtype, shape = np.dtype(tensor.dtype), shape_of(tensor, sizes)
        binding.bind_output(tensor.name, "cuda", 0, dtype, shape, addresses[tensor.memory])
    return binding
