"""A workspace of engines: their execution contexts, and CUDA graphs captured from steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from ...format.contract import GraphSpec, Slot
from ...format.manifest import Manifest
from ..cuda import Device
from ..cuda.layout import Addresses, Sizes, shape_of
from ..cuda.workspace import Workspace
from ..errors import BackendError
from .contexts import Context, KernelCache
from .loaded_engine import LoadedEngine
from .packages import Package


class EngineWorkspace(Workspace):
    """A workspace for a bundle's engines; see `backend.TensorRTBackend`.

    Args:
        scratch: bytes of scratch memory that either engine needs, in any profile
    """

    def __init__(
        self,
        device: Device,
        preparing: threading.RLock,
        manifest: Manifest,
        package: Package,
        engines: Mapping[str, LoadedEngine],
        cache: KernelCache,
        scratch: int,
    ) -> None:
        super().__init__(device, preparing)
        self._package, self._engines, self._cache, self._scratch = package, engines, cache, scratch
        self._specs = manifest.graphs
        self._contexts: dict[tuple[str, Sizes], Context] = {}
        self._bound: set[tuple[str, Sizes]] = set()
        self._graphs: dict[Sizes, Any] = {}
        self._warm: set[Sizes] = set()
        self._refused: set[Sizes] = set()

    def encode(self, sizes: Sizes, addresses: Addresses) -> None:
        self._context("encoder", sizes, addresses).run(self.stream)

    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        self._decoder, self._sizes = self._context("decoder", sizes, addresses), sizes
        self._token, self._chosen = addresses[Slot("token")], addresses[Slot("next_token")]

    def step(self) -> None:
        """New sizes run directly once, then as a captured graph. What cannot be captured runs
        directly.
        """
        sizes = self._sizes
        if sizes in self._graphs:
            self.device.launch(self._graphs[sizes], self.stream)
            return
        if sizes in self._warm - self._refused and self._decoder.can_be_captured(self.stream):
            try:
                with self.preparing:
                    self._graphs[sizes] = self._captured()
            except BackendError:
                self._refused.add(sizes)
            else:
                self.device.launch(self._graphs[sizes], self.stream)
                return
        self._warm.add(sizes)
        self._work()

    def select_candidates(self, sizes: Sizes, addresses: Addresses) -> None:
        self._context("candidates", sizes, addresses).run(self.stream)

    def forget_addresses(self) -> None:
        self._bound.clear()
        self._warm.clear()
        while self._graphs:
            _, graph = self._graphs.popitem()
            self.device.free_graph(graph)

    def drop(self) -> None:
        self._contexts.clear()
        if hasattr(self, "_decoder"):
            del self._decoder

    def _work(self) -> None:
        self._decoder.run(self.stream)
        self.device.copy(self._token, self._chosen, 8 * self._sizes.rows, self.stream)

    def _captured(self) -> Any:
        self.device.begin_capture(self.stream)
        try:
            self._work()
        except BackendError:
            with contextlib.suppress(BackendError):
                self.device.free_graph(self.device.end_capture(self.stream))
            raise
        return self.device.end_capture(self.stream)

    def _context(self, name: str, sizes: Sizes, addresses: Addresses) -> Context:
        """The context of an engine for batches of this size, created at its first use and bound
        again when an address has changed.
        """
        scratch = self.arena.reserve("scratch", self._scratch)
        self.forget_what_moved()
        key = (name, sizes)
        if key not in self._contexts:
            with self.preparing:
                context = Context(
                    self._package, self._engines[name], sizes.profile, self._cache, self.stream
                )
            context.use_memory(scratch, self._scratch)
            self._contexts[key] = context
        if key not in self._bound:
            self._bind(self._contexts[key], self._specs[name], sizes, addresses)
            self._bound.add(key)
        return self._contexts[key]

    def _bind(self, context: Context, graph: GraphSpec, sizes: Sizes, addresses: Addresses) -> None:
        for tensor in graph.inputs:
            context.bind(tensor.name, addresses[tensor.slot], shape_of(tensor, sizes))
        for tensor in graph.outputs:
            context.bind(tensor.name, addresses[tensor.memory])
