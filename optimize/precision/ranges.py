"""How large each value of a graph becomes on real inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..compare import Runner
from ..samples import Samples


def largest_magnitudes(model: ir.Model, batches: Sequence[Samples]) -> dict[str, float]:
    """The largest absolute value of every float value, inputs too, by name.

    The graph itself reduces each value to one number: none is copied out of it.
    """
    watched = model.clone()
    graph = watched.graph
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
    runner = Runner(watched)
    found: dict[str, float] = {}
    for samples in batches:
        for output, magnitude_ in runner.run(samples).items():
            name = names[output]
            found[name] = float(np.maximum(found.get(name, 0.0), magnitude_))  # NaN stays
    return found
