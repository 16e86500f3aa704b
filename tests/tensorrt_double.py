"""A TensorRT on the double of a GPU, which enforces TensorRT's contract.

Engines are ONNX files. Their contexts check what TensorRT requires: every tensor has an address,
shapes are within the profile, caches are updated in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dragoman.runtime.backends.interface import BackendError, DeviceLostError
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Profile
from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain

from .device_double import ALIGNMENT, DoubleDevice, GraphOnDevice, Work

CONTEXT_BYTES = 4096 + 1
"""Memory of an execution context besides its scratch memory."""
PREFIX = b"an engine of the double: "


def plan(graph: Path, spec: GraphSpec, profiles: tuple[Profile, ...]) -> bytes:
    """A serialized engine of the double."""
    made = {"graph": str(graph), "spec": to_plain(spec), "profiles": to_plain(profiles)}
    return PREFIX + json.dumps(made).encode()


def _free(device: DoubleDevice, address: int) -> None:
    device.called_by("~IExecutionContext")
    with contextlib.suppress(DeviceLostError):  # a destructor, which cannot raise
        device.free(address)


def package_module(device: DoubleDevice) -> Any:
    """A module such as `tensorrt`, whose engines run on the device."""

    class Severity:
        ERROR, INTERNAL_ERROR, WARNING = range(3)

    class ILogger:
        pass

    ILogger.Severity = Severity  # type: ignore[attr-defined]

    class IHostMemory(bytes):
        pass

    class IRuntimeCache:
        def __init__(self) -> None:
            self.kernels = b""
            self.compiled: set[str] = set()

        def compile(self, shapes: str) -> None:
            """A run with these shapes, which compiles a kernel of one byte if they are new."""
            if shapes not in self.compiled:
                self.compiled.add(shapes)
                self.kernels = (self.kernels or b"kernels ") + b"."

        def deserialize(self, blob: bytes) -> bool:
            if not blob.startswith(b"kernels"):
                return False
            self.kernels = bytes(blob)
            return True

        def serialize(self) -> IHostMemory:
            return IHostMemory(self.kernels)

    class IRuntimeConfig:
        strategy: Any = None
        dynamic_shapes_kernel_specialization_strategy: Any = None
        cache: Any = None

        def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
            self.strategy = strategy

        def create_runtime_cache(self) -> IRuntimeCache:
            return IRuntimeCache()

        def set_runtime_cache(self, cache: IRuntimeCache) -> bool:
            self.cache = cache
            return True

    class IExecutionContext:
        def __init__(self, engine: Any, config: IRuntimeConfig) -> None:
            device.called_by("create_execution_context")
            assert config.strategy == "user managed"
            weakref.finalize(self, _free, device, device.allocate(CONTEXT_BYTES))
            self.engine, self.config = engine, config
            self.profile: Any = None
            self.shapes: dict[str, tuple[int, ...]] = {}
            self.addresses: dict[str, int] = {}
            self.scratch = False
            self.warm = False
            self.captured: list[Work] = []

        def changed(self) -> None:
            """Graphs captured from the context become invalid; there must be none left."""
            held = [work for graph in device.graphs for work in graph.work]
            assert not any(work in held for work in self.captured), "a graph was captured from it"
            self.warm = False

        def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
            self.profile = self.engine.profiles[profile_index]
            return stream_handle in device.streams

        def set_device_memory(self, memory: int, size: int) -> None:
            assert size >= self.engine.device_memory_size_v2
            device.at(memory, size)
            self.scratch = True

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            spec = next(t for t in self.engine.spec.inputs if t.name == name)
            batch, source = self.profile.batch, self.profile.source
            sources = dataclasses.replace(batch, smallest=1)
            ranges = {"batch": batch, "source_batch": sources, "source": source}
            for axis, size in zip(spec.shape, shape, strict=True):
                if isinstance(axis, int):
                    low = high = axis
                else:
                    low, high = ranges[axis].smallest, ranges[axis].largest
                if not low <= size <= high:
                    return False
            self.changed()
            self.shapes[name] = tuple(shape)
            return True

        def set_tensor_address(self, name: str, memory: int) -> bool:
            if memory % ALIGNMENT:
                return False
            self.changed()
            self.addresses[name] = memory
            return True

        def is_stream_capturable(self, stream: int) -> bool:
            return stream in device.streams

        def execute_async_v3(self, stream_handle: int) -> bool:
            device.called_by("execute_async_v3")
            try:
                device.refuse("run")
            except RuntimeError as error:
                self.engine.logger.log(Severity.ERROR, str(error))
                return False
            engine, shapes, addresses = self.engine, dict(self.shapes), dict(self.addresses)
            capturing = stream_handle in device.capturing
            assert self.warm or not capturing, "a capture before a run with these addresses"
            self.warm = True
            names = {t.name for t in (*engine.spec.inputs, *engine.spec.outputs)}
            assert self.scratch and addresses.keys() == names
            for key, tensor in engine.graph.caches.items():
                assert addresses[key] == addresses[tensor], "a cache is not written in place"
            if self.config.cache is not None:
                self.config.cache.compile(str(sorted(shapes.items())))
            work = functools.partial(engine.graph.run, shapes, addresses)
            self.captured += [work] if capturing else []
            device.put(stream_handle, work)
            return True

    class ICudaEngine:
        device_memory_size_v2 = 4096

        def __init__(self, made: dict[str, Any], logger: Any) -> None:
            self.logger = logger
            weakref.finalize(self, device.called_by, "~ICudaEngine")
            spec = from_plain(GraphSpec, made["spec"], "spec", Problems())
            assert spec is not None
            self.spec = spec
            self.graph = GraphOnDevice(device, Path(made["graph"]), spec)
            self.profiles = [from_plain(Profile, p, "p", Problems()) for p in made["profiles"]]

        def create_runtime_config(self) -> IRuntimeConfig:
            return IRuntimeConfig()

        def create_execution_context(self, runtime_config: Any = None) -> IExecutionContext | None:
            try:
                return IExecutionContext(self, runtime_config)
            except BackendError:
                return None

    registered: list[Any] = []

    class Runtime:
        def __init__(self, logger: Any) -> None:
            registered.append(logger)
            self.logger = registered[0]  # as TensorRT does: one logger for the process

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
            device.called_by("deserialize_cuda_engine")
            if not serialized_engine.startswith(PREFIX):
                self.logger.log(Severity.ERROR, "the magic tag does not match")
                return None
            return ICudaEngine(json.loads(serialized_engine[len(PREFIX) :]), self.logger)

    return SimpleNamespace(
        __version__="1.7.1.116",
        ILogger=ILogger,
        IHostMemory=IHostMemory,
        IRuntimeCache=IRuntimeCache,
        IRuntimeConfig=IRuntimeConfig,
        IExecutionContext=IExecutionContext,
        ICudaEngine=ICudaEngine,
        Runtime=Runtime,
        ExecutionContextAllocationStrategy=SimpleNamespace(
            USER_MANAGED="user managed", __name__="ExecutionContextAllocationStrategy"
        ),
        DynamicShapesKernelSpecializationStrategy=SimpleNamespace(EAGER="eager"),
    )
