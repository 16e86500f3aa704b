"""A GPU through the CUDA runtime API of cuda-bindings."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BackendError, DeviceLostError
from .device import Bytes
from .errors import LOST


class CudaDevice:
    """The first GPU. See `device.Device`."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._cuda: Any = runtime
        self._host: dict[int, Any] = {}

    def allocate(self, size: int) -> int:
        return int(self._call("cudaMalloc", max(1, size)))

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def allocate_host(self, size: int) -> Bytes:
        address = int(self._call("cudaHostAlloc", max(1, size), 0))
        memory: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self._host[memory.ctypes.data] = address
        return memory

    def free_host(self, memory: Bytes) -> None:
        self._call("cudaFreeHost", self._host.pop(memory.ctypes.data))

    def new_stream(self) -> int:
        return int(self._call("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking))

    def free_stream(self, stream: int) -> None:
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        self._call("cudaStreamSynchronize", stream)

    def new_event(self) -> Any:
        return self._call("cudaEventCreateWithFlags", self._cuda.cudaEventDisableTiming)

    def free_event(self, event: Any) -> None:
        self._call("cudaEventDestroy", event)

    def record(self, event: Any, stream: int) -> None:
        self._call("cudaEventRecord", event, stream)

    def wait(self, event: Any) -> None:
        self._call("cudaEventSynchronize", event)

    def follow(self, event: Any, stream: int) -> None:
        self._call("cudaStreamWaitEvent", stream, event, 0)

    def upload(self, address: int, values: NDArray[Any], stream: int) -> None:
        # CUDA stages memory that is not page-locked before the call returns.
        values = np.ascontiguousarray(values)
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, values.ctypes.data, values.nbytes, kind, stream)

    def download(self, memory: Bytes, address: int, stream: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", memory.ctypes.data, address, memory.nbytes, kind, stream)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", to, source, size, kind, stream)

    def copy_2d(
        self,
        to: int,
        to_pitch: int,
        source: int,
        pitch: int,
        width: int,
        height: int,
        stream: int,
    ) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpy2DAsync", to, to_pitch, source, pitch, width, height, kind, stream)

    def clear(self, address: int, size: int, stream: int) -> None:
        self._call("cudaMemsetAsync", address, 0, size, stream)

    def begin_capture(self, stream: int) -> None:
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> Any:
        graph = self._call("cudaStreamEndCapture", stream)
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: Any, stream: int) -> None:
        self._call("cudaGraphLaunch", graph, stream)

    def free_graph(self, graph: Any) -> None:
        self._call("cudaGraphExecDestroy", graph)

    def free_memory(self) -> int:
        free, _ = self._call("cudaMemGetInfo")
        return int(free)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the CUDA runtime and return its value, a tuple if there are several.

        Raises:
            BackendError: it failed; names the function and CUDA's reason.
            DeviceLostError: it failed, and so will all later calls.
        """
        status, *values = getattr(self._cuda, name)(*arguments)
        if status != self._cuda.cudaError_t.cudaSuccess:
            _, reason = self._cuda.cudaGetErrorString(status)
            kind = DeviceLostError if status.name in LOST else BackendError
            raise kind(f"{name}: {reason.decode()} ({status.name})")
        return values[0] if len(values) == 1 else tuple(values)
