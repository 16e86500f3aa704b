"""What goes into each product on given inputs: to weigh errors, and to measure them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..compare import Runner, with_outputs
from ..values import weight
from .observed import Observed

ROWS = 4096
"""The most rows of a product's input that are kept to measure its error on."""


@dataclass
class Inputs:
    """Of one value [..., K]: its second moments [K, K] over all rows, and some rows [R, K]."""

    moments: NDArray[np.float32]
    rows: NDArray[np.float32]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.moments).all())


@dataclass
class Calibration:
    """Inputs of products, by name of the value; values unseen are missing."""

    inputs: dict[str, Inputs] = field(default_factory=dict)

    def of(self, value: ir.Value) -> Inputs | None:
        return self.inputs.get(value.name or "")


def calibrate(model: ir.Model, batches: Sequence[Observed]) -> Calibration:
    """Run a graph on some inputs and keep what enters its products, padding apart."""
    names = sorted(
        {
            node.inputs[0].name
            for node in model.graph
            if node.op_type == "MatMul"
            and _is_weight(node.inputs[1])
            and node.inputs[0] is not None
            and node.inputs[0].name is not None
            and node.inputs[0].producer() is not None
        }
    )
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
            if known is None:
                result.inputs[name] = Inputs(moments, rows[:ROWS])
            else:
                known.moments += moments
                known.rows = np.concatenate([known.rows, rows])[:ROWS]
    return result


def _is_weight(value: ir.Value | None) -> bool:
    """Or a table that is turned to be one."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Transpose":
        return weight(producer.inputs[0], 2)
    return weight(value, 2)
