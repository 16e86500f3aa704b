"""Weights and activations in 16 bits, with fp32 where the range requires it.

A node stays in fp32 if an observed value comes near the 16-bit type's largest number, if a weight
exceeds it, or if its operator sums or exponentiates many numbers. LayerNormalization always
computes its statistics in fp32 (`stash_type` 1, opset 17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

from dragoman.runtime.format.manifest import Refusal

from ..graph_pass import Changes, GraphPass, PassError
from ..graph_values import constant, floats, new_weight, users
from ..running import Runner, Samples

FLOAT = ir.DataType.FLOAT
NAMES: dict[ir.DataType, str] = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}
LARGEST: dict[ir.DataType, float] = {
    ir.DataType.FLOAT16: float(np.finfo(np.float16).max),
    ir.DataType.BFLOAT16: float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
}
HEADROOM = 4.0
"""The factor by which values on other inputs may exceed the observed ones."""

IN_FP32 = frozenset(
    {
        *("Exp", "Log", "LogSoftmax", "Pow", "ReduceMean", "ReduceSum", "Softmax"),
        *("GRU", "Scan"),  # whose states add to those before
        # Their type is determined by an attribute.
        *("ConstantOfShape", "EyeLike", "Range"),
    }
)
"""Operators that lose too much accuracy in 16 bits.

The softmax inside Attention is not one of them: its kernels accumulate in fp32."""

PASS_ON = frozenset(
    {"GatherElements", "Identity", "ReduceMax", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that only pass values on; after a node that stays in fp32, they stay in fp32 too."""


@dataclass(frozen=True)
class Half(GraphPass):
    """Converts float32 values to 16 bits; nodes that need fp32 are the refusals."""

    dtype: ir.DataType
    """FLOAT16 or BFLOAT16."""
    largest: Mapping[str, float]
    """The largest magnitude of each value on calibration data, by name."""
    in_fp32: frozenset[str]
    """Names of graph inputs and outputs that are float32 in every precision."""
    tolerance: float

    @property
    def name(self) -> str:
        """The name of the precision."""
        return NAMES[self.dtype]

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
        graph = model.graph
        if any(output.dtype is None for node in graph for output in node.outputs):
            ShapeInferencePass()(model)
        refusals: list[Refusal] = []
        wide: set[ir.Node] = set()
        for node in graph:
            reason = self._reason(node)
            if reason:
                refusals.append(Refusal(node.name or "", node.op_type, reason))
            first = node.inputs[0] if node.inputs else None
            in_fp32 = first is not None and (
                first.producer() in wide or (first.is_graph_input() and first.name in self.in_fp32)
            )
            if reason or (node.op_type in PASS_ON and in_fp32):
                wide.add(node)
        casts = _Casts(graph)
        for graph_input in graph.inputs:
            if graph_input.dtype == FLOAT and graph_input.name not in self.in_fp32:
                graph_input.type = ir.TensorType(self.dtype)
        self._halve_weights(graph, wide)
        narrow = [node for node in graph if node not in wide]
        matches = sum(map(self._halve, narrow))
        for node in list(graph):
            needed = FLOAT if node in wide else self.dtype
            for index, value in enumerate(node.inputs):
                if value is not None and value.dtype in (FLOAT, self.dtype):
                    node.replace_input_with(index, casts.get(value, needed))
        for index, value in enumerate(graph.outputs):
            needed = FLOAT if value.name in self.in_fp32 else self.dtype
            if value.dtype in (FLOAT, self.dtype) and value.dtype != needed:
                graph.outputs[index] = casts.output(value, needed)
        RemoveUnusedNodesPass()(model)
        return Changes(matches, tuple(refusals))

    def _halve(self, node: ir.Node) -> bool:
        values = [value for value in node.outputs if value.dtype == FLOAT]
        for value in values:
            value.type = ir.TensorType(self.dtype)
        if values and node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(self.dtype))
        return bool(values)

    def _halve_weights(self, graph: ir.Graph, wide: set[ir.Node]) -> None:
        for value in list(graph.initializers.values()):
            if value.dtype != FLOAT or any(node in wide for node in users(value)):
                continue
            tensor = ir.tensor(floats(value).astype(self.dtype.numpy()), name=value.name)
            value.const_value, value.type = tensor, ir.TensorType(self.dtype)

    def _reason(self, node: ir.Node) -> str:
        computes = any(value.dtype == FLOAT for value in node.outputs)
        if computes and node.op_type in IN_FP32 and not node.domain:
            return f"{node.op_type} is computed in fp32"
        limit = LARGEST[self.dtype]
        for value in (*node.inputs, *node.outputs):
            if value is None or value.dtype != FLOAT:
                continue
            magnitude = self._magnitude(value)
            allowed = limit if constant(value) is not None else limit / HEADROOM
            if not magnitude <= allowed:
                reason = f"{value.name} reaches {magnitude:.4g}, {self.name} allows {allowed:.4g}"
                if node.op_type == "TensorScatter":
                    raise PassError(f"{reason}, and caches cannot stay in fp32: use bf16 or fp32")
                return reason
        return ""

    def _magnitude(self, value: ir.Value) -> float:
        numbers = constant(value)
        if numbers is None:
            return self.largest.get(value.name or "", 0.0)
        # -inf in a mask is representable.
        finite = np.abs(numbers[np.isfinite(numbers)])
        return float(finite.max()) if finite.size else 0.0


class _Casts:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.known: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def get(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in self.known:
            self.known[value, dtype] = self._make(value, dtype)
        return self.known[value, dtype]

    def output(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return the value in another type, under the same name."""
        name = value.name
        value.name = f"{name}.{str(value.dtype).lower()}"
        result = self.get(value, dtype)
        result.name = name
        return result

    def _make(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = f"{value.name}.{str(dtype).lower()}"
        if value.is_initializer():
            return new_weight(self.graph, name, floats(value).astype(dtype.numpy()))
        cast = ir.node("Cast", [value], {"to": dtype}, name=f"cast_{name}")
        result = cast.outputs[0]
        result.name, result.shape, result.type = name, value.shape, ir.TensorType(dtype)
        producer = value.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], cast)
        else:
            self.graph.insert_after(producer, cast)
        return result


def largest_magnitudes(model: ir.Model, batches: Sequence[Samples]) -> dict[str, float]:
    """Return the largest magnitude of every float32 value, including graph inputs, by name.

    It is NaN if a value contains NaN; -inf, which 16 bits represent, does not count. The graph
    itself reduces each value, so that no tensors need to be copied out.
    """
    reducing = model.clone()
    graph = reducing.graph
    zero = new_weight(graph, "largest.zero", np.zeros((), np.float32))
    names: dict[str, str] = {}
    outputs = []
    for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
        if value.dtype != ir.DataType.FLOAT or value.name is None:
            continue
        lowest = ir.node("IsInf", [value], {"detect_positive": 0})
        counted = ir.node("Where", [lowest.outputs[0], zero, value])
        magnitude = ir.node("Abs", counted.outputs)
        largest = ir.node("ReduceMax", magnitude.outputs, {"keepdims": 0})
        graph.extend([lowest, counted, magnitude, largest])
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
