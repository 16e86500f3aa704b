"""The execution contexts of engines, and CUDA graphs captured from steps.

Each workspace has a context for each engine and each size of batch. The addresses and shapes of a
context's tensors are set once, so that its captured graph stays valid. Encoder and decoder of a
batch never run at the same time and share scratch memory. Kernels that TensorRT-RTX compiles for a
GPU are cached on disk.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from typing import Any

from ...format.contract import GraphSpec, Slot
from ...format.manifest import Manifest
from ..cuda import Device
from ..cuda.layout import Addresses, Sizes, shape_of
from ..cuda.workspace import Workspace
from ..interface import BackendError
from .engines import LoadedEngine
from .packages import Package, cache_file, read_cache, write_cache

log = logging.getLogger(__name__)


class KernelCache:
    """The cache of kernels that TensorRT-RTX compiles for this machine."""

    def __init__(self, package: Package) -> None:
        self._file = cache_file(package, "kernels")
        self._cache: Any = None
        self._size = 0
        self._lock = threading.Lock()

    def attach(self, config: Any) -> None:
        """Let contexts of this IRuntimeConfig use and fill the cache, if the package has one."""
        if not hasattr(config, "create_runtime_cache"):
            return
        with self._lock:
            if self._cache is None:
                cache, known = config.create_runtime_cache(), read_cache(self._file)
                if known and cache.deserialize(known):
                    self._size = len(known)
                elif known:
                    log.warning(
                        "%s cannot be used here (damaged?): starting with an empty cache",
                        self._file,
                    )
                self._cache = cache
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Write the cache to disk if it has grown."""
        if self._cache is None:
            return
        kernels = bytes(self._cache.serialize())
        if len(kernels) > self._size:
            warning = write_cache(self._file, kernels)
            if warning:
                log.warning("compiled kernels %s", warning)
            self._size = len(kernels)


class Context:
    """An IExecutionContext with one profile."""

    def __init__(
        self, package: Package, engine: LoadedEngine, profile: int, cache: KernelCache, stream: int
    ) -> None:
        trt = package.module
        config = engine.loaded.create_runtime_config()
        config.set_execution_context_allocation_strategy(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if hasattr(config, "dynamic_shapes_kernel_specialization_strategy"):
            # Compile before a graph is captured instead of in the background afterwards.
            strategies = trt.DynamicShapesKernelSpecializationStrategy
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        cache.attach(config)
        self._engine, self._profile, self._config = engine, profile, config
        self._context = engine.loaded.create_execution_context(config)
        if self._context is None:
            raise self._failed("no context could be created")
        if not self._context.set_optimization_profile_async(profile, stream):
            raise self._failed("the profile is refused")
        self._can_capture = getattr(self._context, "is_stream_capturable", None)

    def use_memory(self, address: int, size: int) -> None:
        """Set the scratch memory."""
        self._context.set_device_memory(address, size)

    def bind(self, name: str, address: int, shape: tuple[int, ...] | None = None) -> None:
        """Set the address of a tensor, and the shape of an input."""
        if shape is not None and not self._context.set_input_shape(name, shape):
            raise self._failed(f"input {name} of shape {list(shape)} is refused")
        if not self._context.set_tensor_address(name, address):
            raise self._failed(f"the address {address:#x} of {name} is refused")

    def can_be_captured(self, stream: int) -> bool:
        """Return whether a run in this stream can be captured as a CUDA graph."""
        return self._can_capture is None or bool(self._can_capture(stream))

    def run(self, stream: int) -> None:
        """Enqueue a run."""
        if not self._context.execute_async_v3(stream):
            raise self._failed("it does not run")

    def _failed(self, failure: str) -> BackendError:
        return BackendError(
            f"{self._engine.name}, profile {self._profile}: {failure}: "
            f"{self._engine.messages.reason}"
        )


class EngineWorkspace(Workspace):
    """A workspace for a bundle's engines; see `backend.TensorRTBackend`.

    Args:
        scratch: size of scratch memory in bytes, enough for each engine in every profile
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
        """Enqueue the encoder."""
        self._context("encoder", sizes, addresses).run(self.stream)

    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Set the sizes of the next steps."""
        self._decoder, self._sizes = self._context("decoder", sizes, addresses), sizes
        self._token, self._chosen = addresses[Slot("token")], addresses[Slot("next_token")]

    def step(self) -> None:
        """Enqueue one decoding step.

        New sizes run directly once, then as a captured graph if capture is possible.
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
        """Enqueue the selection of candidates."""
        self._context("candidates", sizes, addresses).run(self.stream)

    def forget_addresses(self) -> None:
        """Drop captured graphs and mark contexts for rebinding."""
        self._bound.clear()
        self._warm.clear()
        while self._graphs:
            _, graph = self._graphs.popitem()
            self.device.free_graph(graph)

    def drop(self) -> None:
        """Release the contexts."""
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
        """Return the context of an engine for batches of this size.

        It is created at its first use, and rebound after an address has changed.
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
