"""OpenVINO on the processor, for encoder-only models. See `interface.Backend`.

Its products of 8 bits saturate on x86 processors without VNNI; there, it computes in fp32. Its
threads do not survive a fork, and are not started again: a child process is refused.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format.bundle import Bundle
from ..format.contract import GraphSpec
from .interface import BackendError, one_line
from .processor import ProcessorBackend, processor

REPORTS = "openvino_telemetry"
"""The package through which OpenVINO reports that it is imported, unless it is missing."""


def _import_openvino() -> Any:
    """Import OpenVINO so that it reports nothing."""
    known = REPORTS in sys.modules
    sys.modules.setdefault(REPORTS, None)  # type: ignore[arg-type]
    try:
        return import_module("openvino")
    finally:
        if not known:
            del sys.modules[REPORTS]


openvino = _import_openvino()
# If files of the package are gone, Python imports the empty folder, and only this fails.
if not hasattr(openvino, "Core"):
    raise ImportError("cannot import name 'Core' from 'openvino'", name="openvino")

CORE = openvino.Core()
"""The only core of the process, which is never freed.

OpenVINO 2026.4 installs an alternate signal stack (sigaltstack) in the thread that loads the first
model, and frees it with the last core: the next signal to that thread would crash the process. In a
forked process, freeing the core would wait for threads that are missing.
"""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(CORE))
GROUP = 32
"""The number of inputs of a product that share a scale, where they are rounded to 8 bits as the
graph runs."""
OPTIONS: dict[str, Any] = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": False,  # other processes would be pinned to the same cores
}
ROUNDING: dict[str, Any] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP}
NO_ROUNDING: dict[str, Any] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "LP_TRANSFORMS_MODE": "NO"}
X86 = frozenset({"x86_64", "AMD64"})
EXACT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
MOST_STREAMS = 16
"""The most calls that run at the same time; each has a copy of the graph, without weights."""


class OpenVINOBackend(ProcessorBackend):
    """The backend of OpenVINO; it has the methods that encoder-only models need."""

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        super().__init__(bundle, threads)
        self.open_sessions(self.manifest.model_graphs)

    def _session(self, graph: str) -> _Session:
        return _Session(self._bundle, self.manifest.graphs[graph], self._threads)

    def _outputs(self, graph: str, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[Any]:
        found: list[Any] = self.session(graph).run(names, feeds)
        return found


class _Session:
    """A compiled graph.

    A call that is alone runs with the lowest latency. With a number of threads, calls beside it run
    on a second copy, as many at a time as there are cores for; without one, they wait.
    """

    def __init__(self, bundle: Bundle, graph: GraphSpec, threads: int | None) -> None:
        self._path, self._graph, self._threads = bundle.path(graph.file), graph, threads
        streams = (os.cpu_count() or 1) // threads if threads else 1
        self._streams = max(1, min(MOST_STREAMS, streams))
        self._alone, self._opening = threading.Lock(), threading.Lock()
        self._own, self._others = _Requests(self._compile(1)), _Requests(None)

    def _compile(self, streams: int) -> Any:
        _check_process()
        options = OPTIONS | (NO_ROUNDING if saturates() else ROUNDING)
        if self._threads is not None:
            options |= {"NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": streams * self._threads}
        try:
            model = CORE.compile_model(self._path, "CPU", options)
        except Exception as error:  # the library's exceptions share no other base
            raise BackendError(
                f"{self._path}: openvino {openvino.__version__.partition('-')[0]} cannot load this "
                f"graph: {one_line(error)}"
            ) from error
        problems = [*_differences(self._graph, model)]
        if problems:
            raise BackendError(f"{self._path} is not as the manifest says", problems)
        return model

    def run(self, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return copies of outputs, by their names."""
        if self._alone.acquire(blocking=self._streams == 1):
            try:
                return self._own.run(names, feeds)
            finally:
                self._alone.release()
        with self._opening:
            if self._others.model is None:
                self._others.model = self._compile(self._streams)
        return self._others.run(names, feeds)


class _Requests:
    """The requests of a compiled model, one for each thread that runs it at the same time."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._free: list[Any] = []

    def run(self, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            request = self._free.pop()
        except IndexError:
            request = self.model.create_infer_request()
        try:
            found = request.infer(feeds, share_inputs=True, share_outputs=True)
            outputs = [np.array(found[name]) for name in names]
        except Exception as error:
            raise BackendError(f"openvino failed: {one_line(error)}") from error
        self._free.append(request)
        return outputs


open_backend = OpenVINOBackend
"""Opens the backend, or raises a BackendError if it cannot run the bundle's graphs."""


def saturates() -> bool:
    """Return whether OpenVINO's products of 8 bits may saturate on this processor."""
    _, features = processor()  # unknown on some systems
    return platform.machine() in X86 and EXACT_PRODUCTS.isdisjoint(features)


_first_process: int | None = None


def _check_process() -> None:
    global _first_process  # OpenVINO's own threads belong to the process
    _first_process = _first_process or os.getpid()
    if os.getpid() != _first_process:
        raise BackendError(
            "openvino: expected a process that was not forked after OpenVINO was used in it, whose "
            "threads are missing: load the model in the child only, or start it with spawn"
        )


def _differences(graph: GraphSpec, model: Any) -> Iterator[str]:
    for specified, ports in ((graph.inputs, model.inputs), (graph.outputs, model.outputs)):
        # A port may have several names, or none.
        found = {name: port for port in ports for name in port.get_names()}
        known = {tensor.name for tensor in specified}
        for port in ports:
            if known.isdisjoint(port.get_names()):
                yield f"unexpected tensor {next(iter(port.get_names()), 'without a name')}"
        for tensor in specified:
            if tensor.name not in found:
                yield f"no tensor {tensor.name}"
                continue
            dtype = found[tensor.name].get_element_type().to_dtype()
            if dtype != np.dtype(tensor.dtype):
                yield f"{tensor.name}: expected {tensor.dtype}, found {dtype}"
            shape = found[tensor.name].get_partial_shape()
            sizes = [axis.get_length() if axis.is_static else None for axis in shape]
            if len(sizes) != len(tensor.shape) or any(
                size is not None and isinstance(stated, int) and size != stated
                for size, stated in zip(sizes, tensor.shape, strict=False)
            ):
                yield f"{tensor.name}: expected shape {list(tensor.shape)}, found {shape}"
