"""Running graphs on ONNX Runtime, without its own optimizations, and comparing their outputs."""

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
"""The difference where exactly one of two values is finite: JSON has no infinity."""

RESOLUTION: dict[ir.DataType, float] = {ir.DataType.FLOAT16: 1e-2, ir.DataType.BFLOAT16: 8e-2}
"""The largest difference that rounding to these types may cause, relative to the largest value."""


class Runner:
    """A graph that is run exactly as it is, without ONNX Runtime's own optimizations.

    16-bit types are emulated, see `emulation`; the outputs are then float32.
    """

    def __init__(self, model: ir.Model) -> None:
        """Load a graph, which stays unchanged.

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
        """The outputs of the graph, by name. Samples are cast to the types of the graph's inputs.

        Raises:
            PassError: ONNX Runtime cannot run the graph on these samples.
        """
        feeds = {name: value.astype(self._dtypes[name]) for name, value in samples.items()}
        outputs: Outputs = _try(self._session.run, feeds)
        return outputs


def run(model: ir.Model, samples: Samples) -> Outputs:
    """The outputs of a graph that is run only once. See `Runner`."""
    return Runner(model).run(samples)


def _try(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # ONNX Runtime's error types share no other base
        raise PassError(f"onnxruntime {onnxruntime.__version__}: {error}") from error


def difference(before: Samples, after: Samples) -> tuple[str, float]:
    """The output that differs most, and its difference: the largest absolute difference divided by
    max(1, the largest absolute value before).

    Integer and boolean outputs are compared only if there are no others; their difference is the
    fraction of unequal elements. So are outputs that have become integers, as caches may.
    """
    floats = [n for n, value in before.items() if _is_float(value) and _is_float(after[n])]
    # Token choices and masks follow from the float outputs.
    worst = [(_difference(before[name], after[name]), name) for name in floats or before]
    value, name = max(worst, default=(0.0, ""))
    return name, value


def resolution(model: ir.Model) -> float:
    """The tolerance for the coarsest type among a graph's outputs; 0.0 if all are float32."""
    return max((RESOLUTION.get(v.dtype, 0.0) for v in model.graph.outputs if v.dtype), default=0.0)


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy of a model in which these values of the main graph are outputs, too."""
    copy = model.clone()
    added = set(names) - {value.name for value in copy.graph.outputs}
    for node in copy.graph:
        copy.graph.outputs.extend(value for value in node.outputs if value.name in added)
    return copy


def _is_float(value: NDArray[np.generic]) -> bool:
    return np.issubdtype(value.dtype, np.floating) or value.dtype == ml_dtypes.bfloat16


def _difference(before: NDArray[np.generic], after: NDArray[np.generic]) -> float:
    if before.shape != after.shape:
        return NOT_FINITE
    if not _is_float(before):
        return float(np.mean(before != after)) if before.size else 0.0
    old, new = before.astype(np.float64), after.astype(np.float64)
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    distance = np.abs(np.where(same, 0.0, new - np.where(same, 0.0, old)))
    finite = np.abs(old[np.isfinite(old)])
    distance /= max(1.0, float(finite.max())) if finite.size else 1.0
    distance[~np.isfinite(distance)] = NOT_FINITE
    return float(distance.max()) if distance.size else 0.0
