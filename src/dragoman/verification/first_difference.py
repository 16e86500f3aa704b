"""Finds the first tensor, in the order of computation, in which a bundle differs from its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import load_graph, module_of
from dragoman.optimize.graph_values import FLOATS
from dragoman.optimize.precision.calibration import calibration_batches
from dragoman.optimize.running import difference, run, with_outputs
from dragoman.runtime import Bundle
from dragoman.runtime.decoding.request import EncoderInput

from .tolerances import TOLERANCES

SOURCES = 4


@dataclass(frozen=True)
class FirstDifference:
    """A tensor that differs, and the node that computes it."""

    graph: str
    tensor: str
    operator: str
    module: str
    """The module of the trained model, such as "decoder.layers.3.feed_forward"."""
    difference: float
    """The difference relative to max(1, the tensor's largest value), as in parity."""

    def __str__(self) -> str:
        return (
            f"{self.graph}, {self.tensor} ({self.operator} of {self.module}), which differs by "
            f"{self.difference:.3g}"
        )


def first_difference(
    neutral: Bundle, bundle: Bundle, sources: Sequence[EncoderInput], tolerance: float
) -> FirstDifference | None:
    """Compare a bundle with a neutral one of the same model.

    Returns:
        None if every tensor is within the tolerance
    """
    observed = calibration_batches(neutral, sources[:SOURCES])
    for graph in neutral.manifest.model_graphs:
        expected, found = (load_graph(b.graph_path(graph)) for b in (neutral, bundle))
        makers = {o.name or "": node for node in expected.graph for o in node.outputs}
        operators = {
            o.name or "": node.op_type
            for node in found.graph
            for o in node.outputs
            if o.name in makers and o.dtype in FLOATS
        }
        before, after = (
            run(with_outputs(model, list(operators)), observed[graph][0].samples)
            for model in (expected, found)
        )
        for name, operator in operators.items():
            _, apart = difference({name: before[name]}, {name: after[name]})
            if apart > tolerance:
                return FirstDifference(graph, name, operator, module_of(makers[name]), apart)
    return None


def describe_first_difference(
    neutral: Bundle, bundle: Bundle, sources: Sequence[EncoderInput]
) -> str:
    """Describe the first difference beyond the tolerance of the precision."""
    if bundle.manifest.executable.format != "onnx":
        return "engines are opaque: the first differing tensor cannot be located"
    tolerance = TOLERANCES[bundle.manifest.precision]
    try:
        difference = first_difference(neutral, bundle, sources, tolerance)
    except DragomanError as error:  # the verdict is reported in any case
        return f"the first differing tensor cannot be located ({error})"
    if difference is None:
        return f"no tensor within the graphs differs by more than {tolerance:g}"
    return f"the first tensor to differ by more than {tolerance:g}: {difference}"
