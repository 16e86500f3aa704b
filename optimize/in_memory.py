"""An ONNX Runtime session of a graph in memory: no file is written, whatever the graph's size.

A serialized graph may not exceed 2 GB (protobuf), and its weights need not be copied twice. Large
initializers are therefore declared as external data and handed to the session as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnxruntime import OrtValue

from dragoman.graph_files import INLINE_BYTES

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Unsigned integers by size in bytes: stand in for element types that numpy does not have."""


class InMemorySession:
    """A graph, loaded for the CPU.

    Attributes:
        session: ONNX Runtime's own; valid as long as this object
        output_names: the graph's outputs, in order
    """

    def __init__(self, model: ir.Model, options: onnxruntime.SessionOptions) -> None:
        """Load a graph, which stays unchanged.

        Args:
            options: of the session; the weights are added to them

        Raises:
            Exception: ONNX Runtime cannot load the graph; its errors share no other base.
        """
        graph = model.clone()
        # Kept because the session reads them as long as it exists.
        self._weights = _detach_weights(graph)
        options.add_external_initializers(list(self._weights), list(self._weights.values()))
        for name, value in self._weights.items():
            options.add_initializer(name, value)  # read in place instead of copied
        self.session = onnxruntime.InferenceSession(
            ir.to_proto(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.output_names: Sequence[str] = [o.name for o in self.session.get_outputs()]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """All outputs of the graph, by name.

        Raises:
            Exception: ONNX Runtime cannot run the graph on these inputs.
        """
        outputs = self.session.run(self.output_names, dict(inputs))
        return dict(zip(self.output_names, outputs, strict=True))


def _detach_weights(model: ir.Model) -> dict[str, OrtValue]:
    """Take the large initializers out of a graph, in place, and return them by name.

    Those of subgraphs stay: a session takes external tensors for the main graph only.
    """
    weights = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes <= INLINE_BYTES:
            continue
        weights[name] = _ort_value(tensor)
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor(
            "in-memory", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name
        )
    return weights


def _ort_value(tensor: ir.TensorProtocol) -> OrtValue:
    """A tensor for ONNX Runtime that shares the memory; elements of less than a byte are copied."""
    if tensor.dtype.bitwidth < 8:
        # The shape is taken from the array, which has a byte per element; only the packed elements
        # at its start are read.
        array = np.empty(tensor.shape.numpy(), np.uint8)
        array.reshape(-1)[: tensor.nbytes] = np.frombuffer(tensor.tobytes(), np.uint8)
    else:
        array = np.ascontiguousarray(tensor.numpy())
        array = array.view(UNSIGNED[array.itemsize])
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(tensor.dtype))
