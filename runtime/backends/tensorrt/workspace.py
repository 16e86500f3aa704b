"""The execution contexts of engines, and CUDA graphs captured from steps.

A workspace has a context for each captured graph, whose addresses and shapes stay as they are, so
that the graph stays valid. What is not captured runs in one context for each engine and profile.
Encoder and decoder of a batch never run at the same time and share scratch memory.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...format.contract import GraphSpec
from ...format.manifest import Manifest
from ..cuda import Device, gpu_driver
from ..cuda.layout import Addresses, Sizes, fed_back, memory_slot, shape_of
from ..cuda.workspace import StepCounter, Stream, Workspace
from ..interface import BackendError, DeviceLostError
from .engines import LoadedEngine
from .packages import Package, cache_file, read_cache, write_cache

log = logging.getLogger(__name__)


WRITE_INTERVAL = 10.0
"""The shortest time in seconds between two writes of compiled kernels while engines run."""


class KernelCache:
    """The cache on disk of kernels that TensorRT-RTX compiles for this GPU and its driver.

    It is written when kernels have been compiled, for processes that end in whatever way, and at
    the end. Several threads can use it.
    """

    def __init__(self, package: Package, device: Device) -> None:
        gpu = device.gpu()
        driver = gpu_driver() or f"cuda-{gpu.cuda}"
        machine = f"{gpu.name}-{gpu.compute_capability}-driver-{driver}"
        name = re.sub(r"[^\w.]+", "-", machine)
        self.file = cache_file(package, f"{name}.kernels")
        self._cache: Any = None
        self._size = 0
        self._known: set[tuple[str, Sizes]] = set()
        self._compiled, self._written = False, -WRITE_INTERVAL
        self._lock = threading.Lock()

    def attach(self, config: Any) -> None:
        """Let contexts of this IRuntimeConfig use and fill the cache, if the package has one."""
        if not hasattr(config, "create_runtime_cache"):
            return
        with self._lock:
            if self._cache is None:
                cache, known = config.create_runtime_cache(), read_cache(self.file)
                if known and cache.deserialize(known):
                    self._size = len(known)
                elif known:
                    log.warning(
                        "%s cannot be used here (damaged?): starting with an empty cache",
                        self.file,
                    )
                self._cache = cache
        config.set_runtime_cache(self._cache)

    def ran(self, graph: str, sizes: Sizes) -> None:
        """Note a run of a graph, which has compiled kernels if its sizes are new."""
        if self._compiled or (graph, sizes) not in self._known:
            self._known.add((graph, sizes))
            self._compiled = True
            if time.monotonic() - self._written >= WRITE_INTERVAL:
                self.save()

    def save(self) -> None:
        """Write the cache to disk if it has grown."""
        with self._lock:
            if self._cache is None:
                return
            kernels = bytes(self._cache.serialize())
            self._compiled, self._written = False, time.monotonic()
            if len(kernels) > self._size:
                warning = write_cache(self.file, kernels)
                if warning:
                    log.warning("compiled kernels %s", warning)
                self._size = len(kernels)


class Context:
    """An IExecutionContext with one profile."""

    def __init__(
        self,
        device: Device,
        package: Package,
        engine: LoadedEngine,
        profile: int,
        cache: KernelCache,
        stream: int,
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
        self.sizes: Sizes | None = None
        self._device, self._engine = device, engine
        self._profile, self._config = profile, config
        with engine.messages:
            self._context = engine.loaded.create_execution_context(config)
            if self._context is None:
                raise self._failed("no context could be created")
            if not self._context.set_optimization_profile_async(profile, stream):
                raise self._failed("the profile is refused")
        self._can_capture = getattr(self._context, "is_stream_capturable", None)

    def use_memory(self, address: int, size: int) -> None:
        """Set the scratch memory."""
        self._context.set_device_memory(address, size)

    def bind(self, graph: GraphSpec, sizes: Sizes, addresses: Addresses) -> None:
        """Set the shapes of inputs, and the address of every tensor."""
        self.sizes = None
        with self._engine.messages:
            for tensor in graph.inputs:
                shape = shape_of(tensor, sizes)
                if not self._context.set_input_shape(tensor.name, shape):
                    raise self._failed(f"input {tensor.name} of shape {list(shape)} is refused")
                self._set_address(tensor.name, addresses[tensor.slot])
            for tensor in graph.outputs:
                self._set_address(tensor.name, addresses[memory_slot(tensor)])
        self.sizes = sizes

    def can_be_captured(self, stream: int) -> bool:
        """Return whether a run in this stream can be captured as a CUDA graph."""
        return self._can_capture is None or bool(self._can_capture(stream))

    def run(self, stream: int) -> None:
        """Enqueue a run."""
        with self._engine.messages:
            if not self._context.execute_async_v3(stream):
                raise self._failed("it does not run")

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise self._failed(f"the address {address:#x} of {name} is refused")

    def _failed(self, failure: str) -> BackendError | DeviceLostError:
        return self._device.failure(
            f"{self._engine.name}, profile {self._profile}: {failure}: "
            f"{self._engine.messages.reason}"
        )


MOST_GRAPHS = 32
"""Maximum number of captured graphs of a workspace; the least recently used makes room."""

CONTEXT_MEMORY = 2 << 20
"""Device memory in bytes to leave for a context and its captured graph, besides scratch memory.
Neither TensorRT nor CUDA reports it in advance."""


@dataclass
class CapturedStep:
    """A decoding step of one size, in a context that nothing else uses."""

    context: Context
    has_run: bool = False
    graph: Any = None
    """The captured step; None: not captured."""


class EngineWorkspace(Workspace):
    """A workspace for a bundle's engines; see `backend.TensorRTBackend`.

    Its scratch memory, in bytes, is enough for each engine in every profile.
    """

    def __init__(
        self,
        stream: Stream,
        counter: StepCounter,
        manifest: Manifest,
        package: Package,
        engines: Mapping[str, LoadedEngine],
        cache: KernelCache,
        scratch: int,
    ) -> None:
        super().__init__(stream, counter)
        self._package, self._engines, self._cache, self._scratch = package, engines, cache, scratch
        self._specs = manifest.graphs
        self._contexts: dict[tuple[str, int], Context] = {}
        self._steps: dict[Sizes, CapturedStep] = {}
        """Steps that are or will be captured, the least recently used first."""

    def run(self, name: str, sizes: Sizes, addresses: Addresses) -> None:
        """Enqueue the encoder, or the engine that selects candidates."""
        self._shared(name, sizes, addresses).run(self.stream.number)
        self._cache.ran(name, sizes)

    def prepare(self, sizes: Sizes, addresses: Addresses) -> None:
        """Set the sizes of the next steps."""
        self._reserve_scratch()
        self._sizes, self._addresses = sizes, addresses
        self._fed_back = fed_back(self._specs["decoder"], sizes, addresses)
        self._tries, self._has_run = self.may_capture(sizes), False
        if sizes in self._steps:
            self._steps[sizes] = self._steps.pop(sizes)
        if sizes not in self._steps or self._steps[sizes].graph is None:
            self._decoder = self._shared("decoder", sizes, addresses)

    def step(self) -> None:
        """Enqueue one decoding step.

        A size runs directly twice, the second time in its own context, then as a captured graph.
        """
        step = self._steps.get(self._sizes)
        if (step is None or step.graph is None) and self._tries and self._has_run:
            step = self._capture()
        captured = step is not None and step.graph is not None
        if step is not None and captured:
            self.device.launch(step.graph, self.stream.number)
        else:
            self._run()
            self._cache.ran("decoder", self._sizes)
        self._has_run = True
        self._counter.count(captured=captured)

    def forget_addresses(self) -> None:
        """Drop captured graphs and mark contexts for rebinding."""
        for step in self._steps.values():
            self._forget(step)
        for context in self._contexts.values():
            context.sizes = None

    def drop(self) -> None:
        """Release graphs and contexts, and engines, which other workspaces may hold."""
        super().drop()
        self._contexts.clear()
        self._steps.clear()
        self._engines = {}
        if hasattr(self, "_decoder"):
            del self._decoder

    def _run(self) -> None:
        self._decoder.run(self.stream.number)
        self.feed_back()

    def _capture(self) -> CapturedStep | None:
        """Return the step of this size, captured if it has run; None: the capture failed."""
        try:
            step = self._own(self._sizes, self._addresses)
            self._decoder = step.context
            if not step.has_run:
                step.has_run = True
            elif step.context.can_be_captured(self.stream.number):
                step.graph = self._captured()
            else:
                self._tries = False
        except BackendError as error:
            self._tries = False
            self.capture_failed(self._sizes, str(error))
            return None
        return step

    def _captured(self) -> Any:
        number, collects = self.stream.number, gc.isenabled()
        gc.disable()  # finalizers may free memory, which CUDA refuses to a thread that captures
        try:
            self.device.begin_capture(number)
            try:
                self._run()
            except BaseException:
                with contextlib.suppress(BackendError):
                    self.device.free_graph(self.device.end_capture(number))
                raise
            return self.device.end_capture(number)
        finally:
            if collects:
                gc.enable()

    def _forget(self, step: CapturedStep) -> None:
        graph, step.graph = step.graph, None
        step.context.sizes, step.has_run = None, False
        if graph is not None:
            self.device.free_graph(graph)

    def _own(self, sizes: Sizes, addresses: Addresses) -> CapturedStep:
        """Return the step for batches of this size, which becomes the most recently used."""
        step = self._steps.pop(sizes, None)
        if step is None:
            if len(self._steps) == MOST_GRAPHS:
                self.device.synchronize(self.stream.number)
                self._forget(self._steps.pop(next(iter(self._steps))))
            step = CapturedStep(self._new_context("decoder", sizes.profile))
        self._steps[sizes] = step
        self._bind(step.context, "decoder", sizes, addresses)
        return step

    def _shared(self, name: str, sizes: Sizes, addresses: Addresses) -> Context:
        self._reserve_scratch()
        key = name, sizes.profile
        if key not in self._contexts:
            self._contexts[key] = self._new_context(*key)
        self._bind(self._contexts[key], name, sizes, addresses)
        return self._contexts[key]

    def _reserve_scratch(self) -> None:
        self.arena.reserve("scratch", self._scratch)
        self.forget_what_moved()

    def _new_context(self, name: str, profile: int) -> Context:
        engine, stream = self._engines[name], self.stream.number
        context = Context(self.device, self._package, engine, profile, self._cache, stream)
        context.use_memory(self.arena.address("scratch"), self._scratch)
        return context

    def _bind(self, context: Context, name: str, sizes: Sizes, addresses: Addresses) -> None:
        if context.sizes != sizes:
            context.bind(self._specs[name], sizes, addresses)
