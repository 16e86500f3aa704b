"""A GPU simulated on the processor, which enforces the contract of a device.

Work in a stream is done only when somebody waits for it, so that memory that is read too early
holds rubbish. Every address is checked: memory that is not allocated cannot be read or written. No
row of a batch may compute NaN, not even one that nobody reads. While a stream is captured, the
calls are refused that CUDA refuses (cudaThreadExchangeStreamCaptureMode), and the capture fails.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman.runtime.backends.cuda import Device, Gpu
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.format.contract import GraphSpec

Work = Callable[[], None]
RUBBISH = 0xFF
"""Floating-point numbers of these bytes are NaN."""
ALIGNMENT = 256
UNSAFE = frozenset(
    {"allocate", "free", "allocate_host", "free_host", "new_stream", "free_stream"}
    | {"synchronize", "wait", "free_memory"}
)
"""Calls that CUDA may refuse while a stream is captured."""
Mode = Literal["global", "thread local"]
CURRENT = threading.local()
"""Has `index`, the number of a thread's current device."""


@dataclass
class Event:
    """Signalled when the stream reaches its last recording."""

    stream: int | None = None
    recorded: int = 0
    happened: int = 0


@dataclass
class Capture:
    """The capture of a stream, and whether a forbidden call has made it invalid."""

    mode: Mode
    thread: int
    work: list[Work] = field(default_factory=list)
    invalid: bool = False


@dataclass
class Graph:
    work: list[Work]


def locked(method: Any) -> Any:
    """One call at a time: threads share the device."""

    @functools.wraps(method)
    def call(self: DoubleDevice, *args: Any) -> Any:
        with self.lock:
            return method(self, *args)

    return call


def current_file() -> str:
    """The file of the test that runs."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]


@dataclass
class DoubleDevice(Device):
    """A simulated `cuda.Device`.

    Attributes:
        room: bytes that can be allocated
        log: the names of all calls
        strangers: calls of other libraries in threads that have not entered the device
        refuse: called with the name of each call; may raise
        file: the file of the test that made it
    """

    room: int = 1 << 40
    log: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    refuse: Callable[[str], None] = lambda name: None
    blocks: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    host: list[NDArray[np.uint8]] = field(default_factory=list)
    streams: dict[int, list[Work]] = field(default_factory=dict)
    capturing: dict[int, Capture] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    next_address: int = 0x7000_0000
    index: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    thread: threading.local = field(default_factory=threading.local)
    file: str = field(default_factory=current_file)

    def gpu(self) -> Gpu:
        return Gpu("NVIDIA Double/2", "8.9", "13.0")

    def enter(self) -> None:
        self.thread.mode = "thread local"
        CURRENT.index = self.index

    def called_by(self, library: str) -> None:
        """Another library calls CUDA in this thread."""
        if not hasattr(self.thread, "mode") or CURRENT.index != self.index:
            self.strangers.append(library)
            raise AssertionError(f"{library} in a thread that has not entered the device")

    @locked
    def allocate(self, size: int) -> int:
        self._note("allocate")
        if sum(block.size for block in self.blocks.values()) + size > self.room:
            raise BackendError("cudaMalloc: out of memory (cudaErrorMemoryAllocation)")
        address = self.next_address
        self.next_address += size + 4096 - size % ALIGNMENT
        self.blocks[address] = np.full(size, RUBBISH, np.uint8)
        return address

    @locked
    def free(self, address: int) -> None:
        self._note("free")
        for stream in self.streams:
            self._run(stream)
        del self.blocks[address]

    @locked
    def allocate_host(self, size: int) -> NDArray[np.uint8]:
        self._note("allocate_host")
        memory = np.full(size, RUBBISH, np.uint8)
        self.host.append(memory)
        return memory

    @locked
    def free_host(self, memory: NDArray[np.uint8]) -> None:
        self._note("free_host")
        self.host = [known for known in self.host if known is not memory]

    @locked
    def new_stream(self) -> int:
        self._note("new_stream")
        stream = 1 + max(self.streams, default=0)
        self.streams[stream] = []
        return stream

    @locked
    def free_stream(self, stream: int) -> None:
        self._note("free_stream")
        self._run(stream)
        del self.streams[stream]

    @locked
    def synchronize(self, stream: int) -> None:
        self._note("synchronize", stream)
        self._run(stream)

    @locked
    def new_event(self) -> Event:
        self._note("new_event")
        self.events.append(Event())
        return self.events[-1]

    @locked
    def free_event(self, event: Event) -> None:
        self._note("free_event")
        self.events = [known for known in self.events if known is not event]

    @locked
    def record(self, event: Event, stream: int) -> None:
        self._note("record")
        event.stream, event.recorded = stream, event.recorded + 1
        number = event.recorded
        self._put(stream, lambda: setattr(event, "happened", number))

    @locked
    def wait(self, event: Event) -> None:
        self._note("wait")
        assert event.stream is not None, "an event that was never recorded"
        self._reach(event, event.stream, event.recorded)

    @locked
    def follow(self, event: Event, stream: int) -> None:
        self._note("follow")
        assert event.stream is not None, "an event that was never recorded"
        assert stream not in self.capturing, "a wait for another stream is no part of a graph"
        self._put(stream, functools.partial(self._reach, event, event.stream, event.recorded))

    def upload(self, address: int, values: NDArray[Any], stream: int) -> None:
        self._note("upload")
        taken = np.ascontiguousarray(values).copy().view(np.uint8).reshape(-1)
        self._put(stream, lambda: self._write(address, taken))

    def download(self, memory: NDArray[np.uint8], address: int, stream: int) -> None:
        self._note("download")
        assert any(np.shares_memory(memory, known) for known in self.host), "not page-locked"

        def fill() -> None:
            memory[:] = self.at(address, memory.size)

        self._put(stream, fill)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        self._note("copy")
        assert abs(to - source) >= size, "source and destination overlap"
        self._put(stream, lambda: self._write(to, self.at(source, size).copy()))

    def copy_2d(
        self, to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, stream: int
    ) -> None:
        self._note("copy_2d")
        assert 0 < width <= min(pitch, to_pitch) and height > 0
        read, written = (each * (height - 1) + width for each in (pitch, to_pitch))
        assert source + read <= to or to + written <= source, "source and destination overlap"

        def move() -> None:
            for line in range(height):
                self._write(to + line * to_pitch, self.at(source + line * pitch, width).copy())

        self._put(stream, move)

    def clear(self, address: int, size: int, stream: int) -> None:
        self._note("clear")
        self._put(stream, lambda: self._write(address, np.zeros(size, np.uint8)))

    def begin_capture(self, stream: int, mode: Mode = "thread local") -> None:
        self._note("begin_capture")
        assert stream not in self.capturing
        self.capturing[stream] = Capture(mode, threading.get_ident())

    def end_capture(self, stream: int) -> Graph:
        self._note("end_capture")
        if stream not in self.capturing:
            raise BackendError("cudaStreamEndCapture: invalid (cudaErrorIllegalState)")
        if self.capturing[stream].thread != threading.get_ident():
            raise BackendError("cudaStreamEndCapture: (cudaErrorStreamCaptureWrongThread)")
        capture = self.capturing.pop(stream)
        if capture.invalid:
            raise BackendError("cudaStreamEndCapture: (cudaErrorStreamCaptureInvalidated)")
        self.graphs.append(Graph(capture.work))
        return self.graphs[-1]

    @locked
    def launch(self, graph: Graph, stream: int) -> None:
        self._note("launch")
        assert any(graph is known for known in self.graphs), "a graph that was freed"
        self.streams[stream].extend(graph.work)

    def free_graph(self, graph: Graph) -> None:
        self._note("free_graph")
        self.graphs = [known for known in self.graphs if known is not graph]

    @locked
    def free_memory(self) -> int:
        self._note("free_memory")
        return self.room - sum(block.size for block in self.blocks.values())

    def at(self, address: int, size: int) -> NDArray[np.uint8]:
        """The memory there."""
        for start, block in self.blocks.items():
            if start <= address and address + size <= start + block.size:
                return block[address - start : address - start + size]
        raise AssertionError(f"{size} bytes at {address:#x} are not allocated")

    def put(self, stream: int, work: Work) -> None:
        """Enqueue the work of an execution context."""
        self._note("execute")
        self._put(stream, work)

    def assert_empty(self) -> None:
        """Everything was freed, by threads that had entered."""
        assert not self.strangers
        held = (self.blocks, self.host, self.streams, self.capturing, self.events, self.graphs)
        assert [len(things) for things in held] == [0] * len(held)

    @locked
    def _note(self, name: str, stream: int | None = None) -> None:
        self.refuse(name)
        self.enter()
        for captured, capture in self.capturing.items() if name in UNSAFE else ():
            same = capture.thread == threading.get_ident() or captured == stream
            if same or self.mode == capture.mode == "global":
                capture.invalid = True
                raise BackendError(f"{name}: CUDA failure 900 (cudaErrorStreamCaptureUnsupported)")
        self.log.append(name)

    @property
    def mode(self) -> Mode:
        """The capture mode of the thread."""
        mode: Mode = getattr(self.thread, "mode", "global")
        return mode

    @locked
    def _put(self, stream: int, work: Work) -> None:
        capture = self.capturing.get(stream)
        if capture is None:
            self.streams[stream].append(work)
            return
        assert capture.thread == threading.get_ident(), "another thread's work is captured"
        if capture.invalid:
            raise BackendError("CUDA failure 901 (cudaErrorStreamCaptureInvalidated)")
        capture.work.append(work)

    @locked
    def _run(self, stream: int) -> None:
        queue = self.streams[stream]
        while queue:
            queue.pop(0)()

    @locked
    def _reach(self, event: Event, stream: int, recording: int) -> None:
        """Do the work of a stream until it reaches a recording of an event."""
        while event.happened < recording:
            self.streams[stream].pop(0)()

    def _write(self, address: int, values: NDArray[np.uint8]) -> None:
        self.at(address, values.size)[:] = values


class GraphOnDevice:
    """An ONNX file computed on the processor, with its tensors in the device's memory."""

    def __init__(self, device: DoubleDevice, file: Path, spec: GraphSpec) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        # Products of 8-bit weights are computed in 16 bits, as on a GPU, not in 8.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        self.session = onnxruntime.InferenceSession(str(file), options)
        self.device, self.spec = device, spec
        roles = {(t.role, t.layer): t.name for t in spec.inputs}
        self.caches = {
            t.name: roles["past_key" if t.role == "present_key" else "past_value", t.layer]
            for t in spec.outputs
            if t.role in ("present_key", "present_value")
        }

    def run(self, shapes: Mapping[str, tuple[int, ...]], addresses: Mapping[str, int]) -> None:
        feeds = {}
        for tensor in self.spec.inputs:
            dtype, shape = np.dtype(tensor.dtype), shapes[tensor.name]
            raw = self.device.at(addresses[tensor.name], dtype.itemsize * math.prod(shape))
            feeds[tensor.name] = raw.view(dtype).reshape(shape).copy()
        outputs = self.session.run([t.name for t in self.spec.outputs], feeds)
        for tensor, values in zip(self.spec.outputs, outputs, strict=True):
            past = next((t for t in self.spec.inputs if t.slot == tensor.memory), None)
            if tensor.role == "present_state" and past is not None:
                assert addresses[tensor.name] != addresses[past.name], "read while it is written"
            assert values.dtype.kind != "f" or np.isfinite(values).all(), tensor.name
            raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
            self.device.at(addresses[tensor.name], raw.size)[:] = raw
