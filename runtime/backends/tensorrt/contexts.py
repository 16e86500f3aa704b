"""Execution contexts of an engine, one for each profile and user.

Their scratch memory is not their own: encoder and decoder of a batch never run at the same time,
and share one. Kernels that TensorRT-RTX compiles for a GPU are kept for the next process.
"""

from __future__ import annotations

from typing import Any

from ..errors import BackendError
from .packages import Package
from .user_cache import cache_file, read_cache, write_cache


class KernelCache:
    """Kernels that were compiled where the engines run (TensorRT-RTX only)."""

    def __init__(self, package: Package) -> None:
        self._file = cache_file(package, "kernels")
        self._cache: Any = None
        self._size = 0

    def attach(self, config: Any) -> None:
        """Let contexts of this IRuntimeConfig use and fill the cache, if they have one."""
        if not hasattr(config, "create_runtime_cache"):
            return
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            known = read_cache(self._file)
            if known and self._cache.deserialize(known):  # of another version or GPU: not taken
                self._size = len(known)
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Keep it, if it has grown."""
        if self._cache is None:
            return
        kernels = bytes(self._cache.serialize())
        if len(kernels) > self._size:
            write_cache(self._file, kernels)
            self._size = len(kernels)


class Context:
    """An IExecutionContext in one profile, with addresses and shapes to be set."""

    def __init__(
        self, package: Package, engine: Any, profile: int, cache: KernelCache, stream: int
    ) -> None:
        trt = package.module
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if hasattr(config, "dynamic_shapes_kernel_specialization_strategy"):
            # Compiled before they are captured in a graph, not behind our back afterwards.
            strategies = trt.DynamicShapesKernelSpecializationStrategy
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        cache.attach(config)
        self._context = engine.create_execution_context(config)
        if self._context is None:
            raise BackendError(
                f"{package.name}: cannot make an execution context: is memory short?"
            )
        self._set(self._context.set_optimization_profile_async(profile, stream), "profile", profile)
        self._can_capture = getattr(self._context, "is_stream_capturable", None)

    def use_memory(self, address: int, size: int) -> None:
        """Scratch memory, until it is told otherwise."""
        self._context.set_device_memory(address, size)

    def bind(self, name: str, address: int, shape: tuple[int, ...] | None = None) -> None:
        """Say where a tensor lies, and of an input what shape it has."""
        if shape is not None:
            self._set(self._context.set_input_shape(name, shape), name, shape)
        self._set(self._context.set_tensor_address(name, address), name, address)

    def can_be_captured(self, stream: int) -> bool:
        return self._can_capture is None or bool(self._can_capture(stream))

    def run(self, stream: int) -> None:
        """Put a run into the stream."""
        if not self._context.execute_async_v3(stream):
            raise BackendError("TensorRT could not start to run an engine")

    @staticmethod
    def _set(done: bool, what: object, value: object) -> None:
        if not done:
            raise BackendError(f"TensorRT refuses {value} for {what}")
