"""How the inputs of int8 products become integers: with a fixed scale, or with one for each row.

Either way the integers of a row depend on this row alone, so that a product computes the same for
it in any batch: sums of integers are exact in any order. `DynamicQuantizeLinear`, which chooses one
scale for a whole tensor, would let the largest number of one sentence round those of all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from ..graph_values import new_weight, users
from .calibration import Inputs, Range
from .rounding import Float

FIXED_ERROR_MULTIPLE = 2.0
"""A scale is fixed if it rounds the observed rows with at most so many times the error of scales of
their own, which cost a tenth of a step. Trained models are below it after norms and mostly
elsewhere, on sources of other kinds as well; outliers exceed it."""

CUT = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of the observed range that a fixed scale may be for: cutting off the rarest numbers rounds
all others better."""

LEAST = np.float32(1e-30)
"""The least size of a row: rows of zeros stay zeros."""


class Integers(NamedTuple):
    """An input as a product reads it.

    Attributes:
        values: uint8, of the input's shape
        scale: float32, of one element
        zero_point: uint8, of one element
        row_scale: float32 [..., 1], what the products of each row are still to be multiplied by;
            None: nothing
    """

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    row_scale: ir.Value | None


@dataclass(frozen=True)
class FixedScale:
    """`QuantizeLinear` (opset 13) with constants: what exceeds the range becomes its end."""

    scale: float
    zero_point: int
    name: ClassVar = "fixed scale"

    @classmethod
    def of(cls, known: Range, rows: Float) -> FixedScale:
        """The one that rounds rows best, of numbers in a range."""
        tried = []
        for share in CUT:
            scale = (known.high - known.low) * share / 255 or 1.0
            tried.append(cls(float(np.float32(scale)), round(-known.low * share / scale)))
        return min(tried, key=lambda fixed: _error(fixed, rows))

    def round(self, rows: Float) -> Float:
        """Inputs [R, K] as a product reads them."""
        integers = np.rint(rows / np.float32(self.scale)) + self.zero_point
        rounded = (np.clip(integers, 0, 255) - self.zero_point) * np.float32(self.scale)
        return np.asarray(rounded, np.float32)

    def quantize(self, graph: ir.Graph, x: ir.Value) -> tuple[list[ir.Node], Integers]:
        """The nodes that are missing for it, and what they make of x."""
        scale = new_weight(graph, f"scale_{self.scale:.9g}", np.array(self.scale, np.float32))
        zero_point = new_weight(
            graph, f"zero_point_{self.zero_point}", np.array(self.zero_point, np.uint8)
        )
        for user in users(x):
            if user.op_type == "QuantizeLinear" and user.inputs[1:] == (scale, zero_point):
                return [], Integers(user.outputs[0], scale, zero_point, None)
        node = ir.node("QuantizeLinear", [x, scale, zero_point])
        return [node], Integers(node.outputs[0], scale, zero_point, None)


@dataclass(frozen=True)
class RowScales:
    """Each row [..., K] relative to its largest magnitude, which its products are multiplied by.

    Attributes:
        nonnegative: no input is ever negative, so that all 8 bits are for magnitudes
    """

    nonnegative: bool = False
    name: ClassVar = "scale of each row"

    @property
    def zero_point(self) -> int:
        return 0 if self.nonnegative else 128

    @property
    def steps(self) -> int:
        """From zero to the largest magnitude."""
        return 255 if self.nonnegative else 127

    def round(self, rows: Float) -> Float:
        """Inputs [R, K] as a product reads them."""
        largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), LEAST)
        lowest = 0 if self.nonnegative else -self.steps
        integers = np.clip(np.rint(rows / largest * self.steps), lowest, self.steps)
        return np.asarray(integers / self.steps * largest, np.float32)

    def quantize(self, graph: ir.Graph, x: ir.Value) -> tuple[list[ir.Node], Integers]:
        """The nodes that are missing for it, and what they make of x."""
        step = new_weight(graph, f"1/{self.steps}", np.array(1 / self.steps, np.float32))
        zero_point = new_weight(
            graph, f"zero_point_{self.zero_point}", np.array(self.zero_point, np.uint8)
        )
        for user in users(x):
            if user.op_type == "Div" and user.inputs[0] is x:
                (quantize,) = users(user.outputs[0])
                return [], Integers(quantize.outputs[0], step, zero_point, user.inputs[1])
        magnitudes = [] if self.nonnegative else [ir.node("Abs", [x])]
        magnitude = magnitudes[0].outputs[0] if magnitudes else x
        last_axis = new_weight(graph, "last_axis", np.array([-1]))
        largest = ir.node("ReduceMax", [magnitude, last_axis], {"keepdims": 1})
        least = new_weight(graph, "least", np.array(LEAST))
        positive = ir.node("Max", [largest.outputs[0], least])
        relative = ir.node("Div", [x, positive.outputs[0]])
        integers = ir.node("QuantizeLinear", [relative.outputs[0], step, zero_point])
        nodes = [*magnitudes, largest, positive, relative, integers]
        return nodes, Integers(integers.outputs[0], step, zero_point, positive.outputs[0])


Activations = FixedScale | RowScales


def choose(known: Inputs | None) -> tuple[Activations, str]:
    """How an input is rounded, by rows if it was not observed, and why."""
    if known is None or not known.finite:
        return RowScales(known is not None and known.nonnegative), "no finite numbers were observed"
    rows = RowScales(known.nonnegative)
    if known.range is None:
        return rows, "calibrated on random sources, which say little about the range of others"
    fixed = FixedScale.of(known.range, known.rows)
    multiple = _error(fixed, known.rows) / max(_error(rows, known.rows), float(LEAST))
    reason = f"a fixed scale has {multiple:.3g} times the error of one of each row"
    return (fixed if multiple <= FIXED_ERROR_MULTIPLE else rows), reason


def _error(activations: Activations, rows: Float) -> float:
    """The root mean square of the relative errors of rows, those of zeros left out."""
    sizes = np.linalg.norm(rows, axis=1)
    rows, sizes = rows[sizes > 0], sizes[sizes > 0]
    if not len(rows):
        return 0.0
    errors = np.linalg.norm(activations.round(rows) - rows, axis=1) / sizes
    return float(np.sqrt(np.mean(errors**2)))
