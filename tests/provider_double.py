"""ONNX Runtime's CUDA provider on the double of a GPU, as onnxruntime-gpu 1.31 behaves.

A run is enqueued in the session's stream. The first run with a graph's number in a thread is three
runs: two without a graph, and one that is captured and launched. Later runs launch the captured
graph and ignore the binding, which must therefore be the same. While the provider captures, no
thread of the process may allocate. The provider allocates memory itself: for weights, and at the
first run with new shapes. Nodes on the processor copy from memory of the host, which the next run
uses again.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime

from dragoman.runtime import Bundle, DeviceLostError
from dragoman.runtime.backends.onnxruntime.cuda import CudaProviderBackend, Sessions
from dragoman.runtime.format.contract import TensorSpec
from dragoman.runtime.model import Model

from .device_double import DoubleDevice, Graph, GraphOnDevice, current_file

WEIGHTS = 4096 + 3
"""Memory of the weights of a session."""
Bound = dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]


@dataclass
class IOBinding:
    """Type, shape and address of each bound tensor by name."""

    session: InferenceSession
    inputs: Bound = field(default_factory=dict)
    outputs: Bound = field(default_factory=dict)

    def bind_input(
        self, name: str, kind: str, number: int, dtype: Any, shape: Any, pointer: int
    ) -> None:
        assert (kind, number) == ("cuda", self.session.device.index)
        self.inputs[name] = np.dtype(dtype), tuple(shape), pointer

    def bind_output(
        self, name: str, kind: str, number: int, dtype: Any, shape: Any, pointer: int
    ) -> None:
        assert (kind, number) == ("cuda", self.session.device.index)
        self.outputs[name] = np.dtype(dtype), tuple(shape), pointer


class InferenceSession:
    """A session whose provider options name a stream."""

    def __init__(
        self, graph: GraphOnDevice, stream: int, *, captures: bool, on_processor: bool = False
    ) -> None:
        device = graph.device
        device.called_by("InferenceSession")
        assert stream in device.streams
        self._running = threading.Lock()
        self._graph, self.device, self._stream = graph, device, stream
        self._captures, self._on_processor = captures, on_processor
        self._runs: list[functools.partial[None]] = []
        self._captured = threading.local()
        held = [device.allocate(WEIGHTS)]
        graphs: list[Graph] = []
        self._held, self._graphs = held, graphs
        self._needs: set[tuple[tuple[int, ...], ...]] = set()
        self.closed = weakref.finalize(self, _free, device, held, graphs)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding, options: onnxruntime.RunOptions) -> None:
        """See the docstring of the module."""
        assert binding.session is self
        assert self._running.acquire(blocking=False), "a session runs in two threads"
        try:
            self._run(binding, options)
        finally:
            self._running.release()

    def _run(self, binding: IOBinding, options: onnxruntime.RunOptions) -> None:
        self.device.called_by("run_with_iobinding")
        self.device.refuse("run")
        self._check(binding)
        number = int(options.get_run_config_entry("gpu_graph_id"))
        if number < 0 or not self._captures:
            self._run_directly(binding)
        else:
            self._run_as_graph(binding, number)
        if options.get_run_config_entry("disable_synchronize_execution_providers") != "1":
            self.device.synchronize(self._stream)

    def _run_directly(self, binding: IOBinding) -> None:
        shapes = tuple(shape for _, shape, _ in binding.inputs.values())
        if shapes not in self._needs:
            self._needs.add(shapes)
            self._held.append(self.device.allocate(64 * sum(map(math.prod, shapes))))
        self.device.put(self._stream, self._work(binding))

    def _run_as_graph(self, binding: IOBinding, number: int) -> None:
        known: dict[int, tuple[Graph, Bound, Bound]] = self._captured.__dict__.setdefault(
            "known", {}
        )
        if number in known:
            graph, *captured = known[number]
            assert captured == [binding.inputs, binding.outputs]
            self.device.launch(graph, self._stream)
            return
        self._run_directly(binding)
        self._run_directly(binding)
        self.device.synchronize(self._stream)
        self.device.begin_capture(self._stream, "global")
        self.device.refuse("captured run")
        self.device.put(self._stream, self._work(binding))
        graph = self.device.end_capture(self._stream)
        self._graphs.append(graph)
        known[number] = graph, dict(binding.inputs), dict(binding.outputs)
        self.device.launch(graph, self._stream)

    def _work(self, binding: IOBinding) -> functools.partial[None]:
        shapes = {name: shape for name, (_, shape, _) in binding.inputs.items()}
        bound = {**binding.inputs, **binding.outputs}
        addresses = {name: address for name, (_, _, address) in bound.items()}
        work = functools.partial(self._graph.run, shapes, addresses)
        if not self._on_processor:
            return work
        self._runs.append(work)
        return functools.partial(_copy_and_run, self._runs, work)

    def _check(self, binding: IOBinding) -> None:
        spec = self._graph.spec
        for tensors, bound in ((spec.inputs, binding.inputs), (spec.outputs, binding.outputs)):
            assert bound.keys() == {tensor.name for tensor in tensors}
            axes: dict[str, int] = {}
            for tensor in tensors:
                dtype, shape, address = bound[tensor.name]
                self.device.at(address, dtype.itemsize * math.prod(shape))
                assert dtype == np.dtype(tensor.dtype)
                assert _fits(tensor, shape, axes)
            assert axes.get("batch", 0) % axes.get("source_batch", 1) == 0
        for output, cache in self._graph.caches.items():
            assert binding.outputs[output] == binding.inputs[cache], "a cache is not in place"


def _copy_and_run(runs: list[functools.partial[None]], work: functools.partial[None]) -> None:
    assert runs[-1] is work, "the next run has used the host's memory before it was copied"
    work()


def _fits(tensor: TensorSpec, shape: tuple[int, ...], axes: dict[str, int]) -> bool:
    """An axis has the same size in all tensors."""
    return len(shape) == len(tensor.shape) and all(
        size == (axes.setdefault(axis, size) if isinstance(axis, str) else axis)
        for axis, size in zip(tensor.shape, shape, strict=True)
    )


def _free(device: DoubleDevice, held: list[int], graphs: list[Graph]) -> None:
    if device.file != current_file():
        return  # a cycle of another file's test, which garbage collection breaks in any thread
    device.called_by("~InferenceSession")
    with contextlib.suppress(DeviceLostError):  # a destructor, which cannot raise
        while held:
            device.free(held.pop())
        while graphs:
            device.free_graph(graphs.pop())


def opened(
    bundle: Bundle, device: DoubleDevice, *, captures: bool = True, on_processor: bool = False
) -> Model:
    """The bundle loaded on the double of the provider.

    Args:
        on_processor: whether nodes of the decoder run on the processor
    """
    manifest = bundle.manifest

    def open_sessions(stream: int) -> Sessions:
        sessions = {
            name: InferenceSession(
                GraphOnDevice(device, bundle.path(spec.file), spec),
                stream,
                captures=captures and name == "decoder",
                on_processor=on_processor and name == "decoder",
            )
            for name, spec in manifest.graphs.items()
        }
        return Sessions(
            sessions.get("encoder"),
            sessions.get("decoder"),
            sessions.get("candidates"),
            captures=captures and "decoder" in sessions,
            synchronous=on_processor,
        )

    return Model(bundle, CudaProviderBackend(bundle, device, open_sessions))
