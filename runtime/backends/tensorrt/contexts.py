"""Execution contexts of an engine: one for each workspace and each size of batch.

The addresses and shapes of a context's tensors are set once, so that a graph captured from it stays
valid. Encoder and decoder of a batch never run at the same time and share scratch memory. Kernels
that TensorRT-RTX compiles for a GPU are kept for the next process.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from ..errors import BackendError
from .loaded_engine import LoadedEngine
from .packages import Package
from .user_cache import cache_file, read_cache, write_cache

log = logging.getLogger(__name__)


class KernelCache:
    """Kernels compiled on the machine where the engines run (TensorRT-RTX only)."""

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
    """An IExecutionContext in one profile."""

    def __init__(
        self, package: Package, engine: LoadedEngine, profile: int, cache: KernelCache, stream: int
    ) -> None:
        trt = package.module
        config = engine.loaded.create_runtime_config()
        config.set_execution_context_allocation_strategy(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if hasattr(config, "dynamic_shapes_kernel_specialization_strategy"):
            # Compile before a graph is captured, not in the background afterwards.
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
        """Set the address of a tensor, and of an input also the shape."""
        if shape is not None and not self._context.set_input_shape(name, shape):
            raise self._failed(f"input {name} of shape {list(shape)} is refused")
        if not self._context.set_tensor_address(name, address):
            raise self._failed(f"the address {address:#x} of {name} is refused")

    def can_be_captured(self, stream: int) -> bool:
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
