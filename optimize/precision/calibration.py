"""Statistics of the inputs of each product, to weigh and to measure quantization errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..compare import Runner, with_outputs
from ..graph_values import is_weight, producer
from .observed import Observed

ROWS = 4096
"""Maximum number of input rows that are kept per product, to measure its error on."""


class Range(NamedTuple):
    """Of numbers and 0."""

    low: float
    high: float

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass
class Inputs:
    """Observations of a value [..., K].

    Attributes:
        moments: x^T x [K, K] over all rows x
        rows: some of the rows [R, K]
        range: of all numbers; None: the sources were random, and others may have another one
        nonnegative: whether none can be negative, whatever the graph's inputs
    """

    moments: NDArray[np.float32]
    rows: NDArray[np.float32]
    range: Range | None
    nonnegative: bool

    @property
    def finite(self) -> bool:
        """Whether no observed number is NaN or infinite."""
        return bool(np.isfinite(self.moments).all())


@dataclass
class Calibration:
    """Observed inputs of products, by name of the value."""

    inputs: dict[str, Inputs] = field(default_factory=dict)

    def of(self, value: ir.Value) -> Inputs | None:
        """The observations of a value; None if it was not observed."""
        return self.inputs.get(value.name or "")


def calibrate(model: ir.Model, batches: Sequence[Observed]) -> Calibration:
    """Run a graph on the batches and observe the inputs of its products, excluding padding."""
    inputs = {
        node.inputs[0].name: node.inputs[0]
        for node in model.graph
        if node.op_type == "MatMul"
        and _is_weight(node.inputs[1])
        and node.inputs[0] is not None
        and node.inputs[0].name is not None
        and node.inputs[0].producer() is not None
    }
    names = sorted(inputs)
    runner = Runner(with_outputs(model, names))
    result = Calibration()
    for batch in batches:
        outputs = runner.run(batch.samples)
        for name in names:
            values = outputs[name].astype(np.float32)
            rows = values[batch.rows] if values.shape[:2] == batch.rows.shape else values
            rows = rows.reshape(-1, rows.shape[-1])
            moments = rows.T @ rows
            known = result.inputs.get(name)
            found = Range(float(rows.min(initial=0)), float(rows.max(initial=0)))
            if known is None:
                nonnegative = producer(inputs[name], "Relu") is not None
                within = None if batch.random else found
                result.inputs[name] = Inputs(moments, rows[:ROWS], within, nonnegative)
            else:
                known.range = None if known.range is None else known.range.joined(found)
                known.moments += moments
                known.rows = np.concatenate([known.rows, rows])[:ROWS]
    return result


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a weight matrix, possibly transposed."""
    transpose = producer(value, "Transpose")
    return is_weight(value if transpose is None else transpose.inputs[0], 2)
