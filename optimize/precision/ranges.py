"""The magnitudes that the values of a graph reach on real inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..compare import Runner
from ..samples import Samples


def largest_magnitudes(model: ir.Model, batches: Sequence[Samples]) -> dict[str, float]:
    """The largest magnitude of every float32 value, including graph inputs, by name; NaN if a value
    contains NaN.

    The graph itself reduces each value to one number, so that no tensors need to be copied out.
    """
    reducing = model.clone()
    graph = reducing.graph
    values = [
        *graph.inputs,
        *(value for node in graph for value in node.outputs),
    ]
    names: dict[str, str] = {}
    outputs = []
    for value in values:
        if value.dtype != ir.DataType.FLOAT or value.name is None:
            continue
        magnitude = ir.node("Abs", [value])
        largest = ir.node("ReduceMax", magnitude.outputs, {"keepdims": 0})
        graph.extend([magnitude, largest])
        (result,) = largest.outputs
        result.name = f"{value.name}.largest"
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        names[result.name] = value.name
        outputs.append(result)
    graph.outputs[:] = outputs
    runner = Runner(reducing)
    magnitudes: dict[str, float] = {}
    for samples in batches:
        for output, observed in runner.run(samples).items():
            name = names[output]
            magnitudes[name] = float(np.maximum(magnitudes.get(name, 0.0), observed))
    return magnitudes
