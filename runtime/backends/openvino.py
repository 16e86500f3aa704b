"""OpenVINO on the processor, for encoder-only models. See `interface.Backend`.

Its products of 8 bits saturate on x86 processors without VNNI; there, it computes in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

# If files of the package are gone, Python imports the empty folder, and only this fails.
from openvino import Core

from ..format.bundle import Bundle
from ..format.contract import GraphSpec
from .interface import BackendError
from .processor import processor
from .sessions import ProcessorBackend

GROUP = 32
"""The number of inputs of a product that share a scale, where they are rounded to 8 bits as the
graph runs."""
OPTIONS: dict[str, Any] = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": False,  # processes beside each other would share the first cores
}
ROUNDING: dict[str, Any] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP}
NO_ROUNDING: dict[str, Any] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "LP_TRANSFORMS_MODE": "NO"}
EXACT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


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
    """A compiled graph. It may run in several threads, each with a request of its own."""

    def __init__(self, bundle: Bundle, graph: GraphSpec, threads: int | None) -> None:
        path = bundle.path(graph.file)
        options = OPTIONS | (NO_ROUNDING if saturates() else ROUNDING)
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        try:
            self._model = Core().compile_model(path, "CPU", options)
        except Exception as error:  # the library's exceptions share no other base
            raise BackendError(
                f"{path}: openvino {openvino.__version__} cannot load this graph: "
                f"{_one_line(error)}"
            ) from error
        problems = [*_differences(graph, self._model)]
        if problems:
            raise BackendError(f"{path} is not as the manifest says", problems)
        self._free: list[Any] = []

    def run(self, names: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return copies of outputs, by their names."""
        try:
            request = self._free.pop()
        except IndexError:
            request = self._model.create_infer_request()
        try:
            found = request.infer(feeds, share_inputs=True, share_outputs=True)
            outputs = [np.array(found[name]) for name in names]
        except Exception as error:
            raise BackendError(f"openvino failed: {_one_line(error)}") from error
        self._free.append(request)
        return outputs


def open_backend(bundle: Bundle, threads: int | None) -> OpenVINOBackend:
    """Open the backend, or raise a BackendError if it cannot run the bundle's graphs."""
    return OpenVINOBackend(bundle, threads)


def saturates() -> bool:
    """Return whether OpenVINO's products of 8 bits may saturate on this processor."""
    _, features = processor()
    return "avx2" in features and EXACT_PRODUCTS.isdisjoint(features)


def _differences(graph: GraphSpec, model: Any) -> Iterator[str]:
    for specified, ports in ((graph.inputs, model.inputs), (graph.outputs, model.outputs)):
        found = {name: port for port in ports for name in port.get_names()}  # several of one
        known = {tensor.name for tensor in specified}
        others = [port.any_name for port in ports if known.isdisjoint(port.get_names())]
        yield from (f"unexpected tensor {name}" for name in others)
        for tensor in specified:
            if tensor.name not in found:
                yield f"no tensor {tensor.name}"
                continue
            dtype = found[tensor.name].get_element_type().to_dtype()
            if dtype != np.dtype(tensor.dtype):
                yield f"{tensor.name}: expected {tensor.dtype}, found {dtype}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
