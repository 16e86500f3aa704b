"""The NVIDIA GPUs of this machine, through the CUDA runtime API.

Addresses are integers. The work of a stream runs in order and asynchronously. Only `wait`,
`synchronize` and freeing memory wait for it.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ..interface import BackendError, DeviceLostError

Bytes = NDArray[np.uint8]

FATAL_ERRORS = {
    "cudaErrorDevicesUnavailable": 46,
    "cudaErrorECCUncorrectable": 214,
    "cudaErrorNvlinkUncorrectable": 220,
    "cudaErrorContained": 226,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchTimeout": 702,
    "cudaErrorContextIsDestroyed": 709,
    "cudaErrorAssert": 710,
    "cudaErrorHardwareStackError": 714,
    "cudaErrorIllegalInstruction": 715,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorInvalidAddressSpace": 717,
    "cudaErrorInvalidPc": 718,
    "cudaErrorLaunchFailure": 719,
    "cudaErrorTensorMemoryLeak": 721,
    "cudaErrorMpsRpcFailure": 806,
    "cudaErrorMpsClientTerminated": 810,
    "cudaErrorExternalDevice": 911,
    "cudaErrorUnknown": 999,
}
"""Codes of cudaError_t after which every call of the process fails.

CUDA documents most of them as "the process must be terminated and relaunched". After the others,
the device or its context is gone.
"""

RESTART = "the GPU is lost to this process, which must be restarted"
"""What to do, in every message about a lost device."""

ERROR_CODE = re.compile(r"(cudaError[A-Z]\w+)|(?i:cuda ?(?:failure|error))[ =:]+(\d+)")
"""Pattern of a code of cudaError_t in a library's message, by name or by number."""


class Gpu(NamedTuple):
    """The properties of a GPU."""

    name: str
    compute_capability: str
    """Compute capability, such as "8.9"."""
    cuda: str


def find_gpu(index: int = 0) -> Gpu:
    """Return the GPU with a number among those that CUDA sees, see CUDA_VISIBLE_DEVICES.

    Raises:
        BackendError: there is no GPU or no driver, or the bindings are not installed.
        DragomanError: there are fewer GPUs.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendError(
            f"the package cuda-bindings cannot be imported ({error}): pip install cuda-bindings"
        ) from error
    try:
        driver = int(_value(runtime, *runtime.cudaDriverGetVersion()))
    except RuntimeError as error:  # from cuda-bindings 12.8, if there is no driver
        raise BackendError(
            f"found no NVIDIA GPU: cuda-bindings cannot load the NVIDIA driver ({error})"
        ) from error
    if not driver:
        raise BackendError("found no NVIDIA GPU: there is no NVIDIA driver")
    status, count = runtime.cudaGetDeviceCount()
    if status == runtime.cudaError_t.cudaErrorInsufficientDriver:
        built = int(_value(runtime, *runtime.cudaRuntimeGetVersion()))
        raise BackendError(
            f"the NVIDIA driver is too old: expected one for CUDA {_release(built)}, found one for "
            f"CUDA {_release(driver)}; update the driver, or install packages for CUDA "
            f"{driver // 1000}"
        )
    if _value(runtime, status, count) == 0:
        raise BackendError("found no NVIDIA GPU")
    if index >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "this machine has" if visible is None else f"CUDA_VISIBLE_DEVICES={visible} shows"
        names = ", ".join(_properties(runtime, number)[0] for number in range(count))
        raise DragomanError(
            f"device: expected cpu, cuda or cuda:N with N below {count}, found cuda:{index}: "
            f"{seen} {count} {'GPU' if count == 1 else 'GPUs'} ({names})"
        )
    return Gpu(*_properties(runtime, index), _release(driver))


DRIVER_VERSION = Path("/sys/module/nvidia/version")


def gpu_driver() -> str:
    """Return the version of the NVIDIA driver; empty: there is none, or it is unknown."""
    try:
        return DRIVER_VERSION.read_text().strip()
    except OSError:
        return ""


def _properties(runtime: Any, index: int) -> tuple[str, str]:
    properties = _value(runtime, *runtime.cudaGetDeviceProperties(index))
    name = properties.name.decode() if isinstance(properties.name, bytes) else properties.name
    return name.rstrip("\0"), f"{properties.major}.{properties.minor}"


def _release(version: int) -> str:
    """Return a version of CUDA as people write it: 12040 is "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _value(runtime: Any, status: Any, value: Any) -> Any:
    if status != runtime.cudaError_t.cudaSuccess:
        _, reason = runtime.cudaGetErrorString(status)
        raise BackendError(f"found no NVIDIA GPU that works: {reason.decode()}")
    return value


_thread = threading.local()
"""Has `mode` once the thread has changed its stream capture mode."""


class Device:
    """A GPU, usable in any thread, of which it is the current device after each call.

    A method raises a BackendError if the device refuses, a DeviceLostError if it is lost.
    """

    def __init__(self, index: int = 0) -> None:
        from cuda.bindings import runtime

        self.index = index
        self._cuda: Any = runtime
        self._host: dict[int, Any] = {}

    def enter(self) -> None:
        """Make the calling thread ready to use the device, directly or through another library.

        CUDA keeps the current device and the stream capture mode for each thread. While ONNX
        Runtime captures in the mode Global, CUDA refuses to allocate or to wait in threads of the
        same mode, the default, and the capture fails. Threads in the mode ThreadLocal are
        independent of it.
        """
        # Each time: other devices and other libraries in this thread change the current device.
        self._checked("cudaSetDevice", self.index)
        if not hasattr(_thread, "mode"):
            mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            self._checked("cudaThreadExchangeStreamCaptureMode", mode)
            _thread.mode = mode

    def gpu(self) -> Gpu:
        """Return the properties of the GPU."""
        return find_gpu(self.index)

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of device memory and return the address."""
        return int(self._call("cudaMalloc", max(1, size)))

    def free(self, address: int) -> None:
        """Free device memory."""
        self._call("cudaFree", address)

    def allocate_host(self, size: int) -> Bytes:
        """Allocate page-locked host memory, which the device accesses directly."""
        address = int(self._call("cudaHostAlloc", max(1, size), 0))
        memory: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self._host[memory.ctypes.data] = address
        return memory

    def free_host(self, memory: Bytes) -> None:
        """Free page-locked host memory."""
        self._call("cudaFreeHost", self._host.pop(memory.ctypes.data))

    def new_stream(self) -> int:
        """Create a stream."""
        return int(self._call("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking))

    def free_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """Wait for all work in the stream."""
        self._call("cudaStreamSynchronize", stream)

    def new_event(self) -> Any:
        """Create an event."""
        return self._call("cudaEventCreateWithFlags", self._cuda.cudaEventDisableTiming)

    def free_event(self, event: Any) -> None:
        """Destroy an event."""
        self._call("cudaEventDestroy", event)

    def record(self, event: Any, stream: int) -> None:
        """Signal the event after the present work in the stream."""
        self._call("cudaEventRecord", event, stream)

    def wait(self, event: Any) -> None:
        """Wait until the event is signalled."""
        self._call("cudaEventSynchronize", event)

    def follow(self, event: Any, stream: int) -> None:
        """Make the stream wait for the event as last recorded."""
        self._call("cudaStreamWaitEvent", stream, event, 0)

    def upload(self, address: int, values: NDArray[Any], stream: int) -> None:
        """Copy an array to the device; the caller may change it after the call."""
        # CUDA copies pageable memory to a staging buffer before the call returns.
        values = np.ascontiguousarray(values)
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, values.ctypes.data, values.nbytes, kind, stream)

    def download(self, memory: Bytes, address: int, stream: int) -> None:
        """Enqueue a copy from the device to memory from `allocate_host`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", memory.ctypes.data, address, memory.nbytes, kind, stream)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy within the device; the ranges must not overlap."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", to, source, size, kind, stream)

    def copy_2d(
        self, to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, stream: int
    ) -> None:
        """Copy the first `width` bytes of each of `height` lines within the device.

        Source lines are `pitch` bytes apart, target lines `to_pitch`. They must not overlap.
        """
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpy2DAsync", to, to_pitch, source, pitch, width, height, kind, stream)

    def clear(self, address: int, size: int, stream: int) -> None:
        """Set bytes to zero."""
        self._call("cudaMemsetAsync", address, 0, size, stream)

    def begin_capture(self, stream: int) -> None:
        """Start to record enqueued work instead of running it."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> Any:
        """Return the recorded work as a CUDA graph for `launch`."""
        graph = self._call("cudaStreamEndCapture", stream)
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: Any, stream: int) -> None:
        """Enqueue a CUDA graph."""
        self._call("cudaGraphLaunch", graph, stream)

    def free_graph(self, graph: Any) -> None:
        """Destroy a CUDA graph."""
        self._call("cudaGraphExecDestroy", graph)

    def free_memory(self) -> int:
        """Return the number of bytes that can still be allocated."""
        free, _ = self._call("cudaMemGetInfo")
        return int(free)

    def failure(self, message: str) -> BackendError | DeviceLostError:
        """Return the exception for a failure that a library reports.

        Where the message has no code of a fatal CUDA error, the device is asked: every call repeats
        such an error.
        """
        for name, number in ERROR_CODE.findall(message):
            if name in FATAL_ERRORS or (number and int(number) in FATAL_ERRORS.values()):
                return DeviceLostError(f"{message}: {RESTART}")
        try:
            self.free_memory()
        except DeviceLostError as error:
            return DeviceLostError(f"{message}: {error}")
        except BackendError:
            pass
        return BackendError(message)

    def _call(self, name: str, *arguments: Any) -> Any:
        self.enter()
        return self._checked(name, *arguments)

    def _checked(self, name: str, *arguments: Any) -> Any:
        status, *values = getattr(self._cuda, name)(*arguments)
        if status != self._cuda.cudaError_t.cudaSuccess:
            _, reason = self._cuda.cudaGetErrorString(status)
            message = f"{name}: {reason.decode()} ({status.name})"
            if status.name in FATAL_ERRORS:
                raise DeviceLostError(f"{message}: {RESTART}")
            raise BackendError(message)
        return values[0] if len(values) == 1 else tuple(values)
