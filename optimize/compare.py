"""How far apart two graphs are: both run on ONNX Runtime, its own optimizations off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from .emulation import emulate_half, has_halves
from .graph_pass import PassError
from .in_memory import InMemorySession
from .samples import Samples

Outputs = dict[str, NDArray[np.generic]]

NOT_FINITE = 1e300
"""The difference where only one of two values is a finite number: JSON has no infinity."""

RESOLUTION: dict[ir.DataType, float] = {ir.DataType.FLOAT16: 1e-2, ir.DataType.BFLOAT16: 8e-2}
"""What rounding alone may cause in graphs of these types, relative to the largest value."""


class Runner:
    """A graph ready to be run, as it is: none of ONNX Runtime's own optimizations, and 16 bits
    emulated, whose outputs are float32."""

    def __init__(self, model: ir.Model) -> None:
        """
        Raises:
            PassError: ONNX Runtime cannot load the graph.
        """
        if has_halves(model):
            model = model.clone()
            emulate_half(model)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self._session = _try(InMemorySession, model, options)
        self._dtypes = {v.name: v.dtype.numpy() for v in model.graph.inputs if v.dtype is not None}

    def run(self, samples: Samples) -> Outputs:
        """The outputs of the graph, by name. Floats are given the type that the graph takes.

        Raises:
            PassError: ONNX Runtime cannot run it on these.
        """
        feeds = {name: value.astype(self._dtypes[name]) for name, value in samples.items()}
        outputs: Outputs = _try(self._session.run, feeds)
        return outputs


def run(model: ir.Model, samples: Samples) -> Outputs:
    """The outputs of a graph that is run once. See `Runner`."""
    return Runner(model).run(samples)


def _try(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # the library raises a dozen types that share no other base
        raise PassError(f"onnxruntime {onnxruntime.__version__}: {error}") from error


def difference(before: Samples, after: Samples) -> tuple[str, float]:
    """The output that differs most, and by how much: the largest absolute difference divided by
    max(1, the largest absolute value before). Of a graph that gives integers only, the share of
    them that differs."""
    floats = [name for name, value in before.items() if _is_float(value)]
    # Choices and masks follow from tensors that are compared, where there are any.
    worst = [(_difference(before[name], after[name]), name) for name in floats or before]
    value, name = max(worst, default=(0.0, ""))
    return name, value


def resolution(model: ir.Model) -> float:
    """The coarsest number format among the outputs, as a tolerance."""
    return max((RESOLUTION.get(v.dtype, 0.0) for v in model.graph.outputs if v.dtype), default=0.0)


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy that also gives these values of its main graph as outputs."""
    copy = model.clone()
    present = {value.name for value in copy.graph.outputs}
    wanted = set(names) - present
    for node in copy.graph:
        copy.graph.outputs.extend(value for value in node.outputs if value.name in wanted)
    return copy


def _is_float(value: NDArray[np.generic]) -> bool:
    return np.issubdtype(value.dtype, np.floating) or value.dtype == ml_dtypes.bfloat16


def _difference(before: NDArray[np.generic], after: NDArray[np.generic]) -> float:
    if before.shape != after.shape:
        return NOT_FINITE
    if not _is_float(before):
        return float(np.mean(before != after)) if before.size else 0.0
    expected, found = before.astype(np.float64), after.astype(np.float64)
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    apart = np.abs(np.where(same, 0.0, found - np.where(same, 0.0, expected)))
    finite = np.abs(expected[np.isfinite(expected)])
    apart /= max(1.0, float(finite.max())) if finite.size else 1.0
    apart[~np.isfinite(apart)] = NOT_FINITE
    return float(apart.max()) if apart.size else 0.0
