"""8-bit weights and activations: `com.microsoft.MatMulIntegerToFloat`.

Weights have one scale per output. Inputs have a fixed scale, or one for each row, so that products
are batch-invariant; `DynamicQuantizeLinear` would choose one for a whole tensor.

If sums of 8-bit products would saturate, the backend requests exact kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from ..graph_values import MICROSOFT, new_weight, users
from .calibration import InputStatistics, ValueRange
from .rounding import Float, IntegerWeight
from .weights import ProductForm, Scheme

FIXED_ERROR_MULTIPLE = 2.0
"""The most by which the error of a fixed scale may exceed that of a scale for each row, on the cpu.

Scales of rows cost a tenth of a step. Trained models are below the limit after norms and mostly
elsewhere, on sources of other kinds as well; outliers exceed it."""

CUT = (1.0, 0.95, 0.9, 0.85, 0.8)
"""The shares of the observed range that a fixed scale may cover.

Clipping the rarest numbers rounds all others better."""

LEAST = np.float32(1e-30)
"""The smallest magnitude of a row, so that rows of zeros stay zeros."""


class QuantizedInput(NamedTuple):
    """The input of a product as integers."""

    values: ir.Value
    """Uint8, of the input's shape."""
    scale: ir.Value
    """Float32, of one element."""
    zero_point: ir.Value
    """Uint8, of one element."""
    row_scale: ir.Value | None
    """Float32 [..., 1], the factor of each row's products; None: no factor."""


@dataclass(frozen=True)
class FixedScale:
    """`QuantizeLinear` (opset 13) with constants; numbers beyond the range are clipped."""

    scale: float
    zero_point: int
    name: ClassVar = "fixed scale"

    @classmethod
    def of(cls, known: ValueRange, rows: Float) -> FixedScale:
        """Return the scale that rounds rows best, for numbers in a range."""
        tried = []
        for share in CUT:
            scale = (known.high - known.low) * share / 255 or 1.0
            tried.append(cls(float(np.float32(scale)), round(-known.low * share / scale)))
        return min(tried, key=lambda fixed: _error(fixed, rows))

    def round(self, rows: Float) -> Float:
        """Return inputs [R, K] as a product reads them."""
        integers = np.rint(rows / np.float32(self.scale)) + self.zero_point
        rounded = (np.clip(integers, 0, 255) - self.zero_point) * np.float32(self.scale)
        return np.asarray(rounded, np.float32)

    def quantize(self, graph: ir.Graph, x: ir.Value) -> tuple[list[ir.Node], QuantizedInput]:
        """Return the nodes that are missing for the integers of x, and the integers."""
        scale = new_weight(graph, f"scale_{self.scale:.9g}", np.array(self.scale, np.float32))
        zero_point = new_weight(
            graph, f"zero_point_{self.zero_point}", np.array(self.zero_point, np.uint8)
        )
        for user in users(x):
            if user.op_type == "QuantizeLinear" and user.inputs[1:] == (scale, zero_point):
                return [], QuantizedInput(user.outputs[0], scale, zero_point, None)
        node = ir.node("QuantizeLinear", [x, scale, zero_point])
        return [node], QuantizedInput(node.outputs[0], scale, zero_point, None)


@dataclass(frozen=True)
class RowScales:
    """A scale for each row [..., K], which multiplies its products."""

    nonnegative: bool = False
    """Whether no input is ever negative, so that all 8 bits are for magnitudes."""
    name: ClassVar = "scale of each row"

    @property
    def zero_point(self) -> int:
        """The integer that zero becomes."""
        return 0 if self.nonnegative else 128

    @property
    def steps(self) -> int:
        """The number of integers from zero to the largest magnitude."""
        return 255 if self.nonnegative else 127

    def round(self, rows: Float) -> Float:
        """Return inputs [R, K] as a product reads them."""
        largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), LEAST)
        lowest = 0 if self.nonnegative else -self.steps
        integers = np.clip(np.rint(rows / largest * self.steps), lowest, self.steps)
        return np.asarray(integers / self.steps * largest, np.float32)

    def quantize(self, graph: ir.Graph, x: ir.Value) -> tuple[list[ir.Node], QuantizedInput]:
        """Return the nodes that are missing for the integers of x, and the integers."""
        step = new_weight(graph, f"1/{self.steps}", np.array(1 / self.steps, np.float32))
        zero_point = new_weight(
            graph, f"zero_point_{self.zero_point}", np.array(self.zero_point, np.uint8)
        )
        for user in users(x):
            if user.op_type == "Div" and user.inputs[0] is x:
                (quantize,) = users(user.outputs[0])
                return [], QuantizedInput(quantize.outputs[0], step, zero_point, user.inputs[1])
        magnitudes = [] if self.nonnegative else [ir.node("Abs", [x])]
        magnitude = magnitudes[0].outputs[0] if magnitudes else x
        last_axis = new_weight(graph, "last_axis", np.array([-1]))
        largest = ir.node("ReduceMax", [magnitude, last_axis], {"keepdims": 1})
        least = new_weight(graph, "least", np.array(LEAST))
        positive = ir.node("Max", [largest.outputs[0], least])
        relative = ir.node("Div", [x, positive.outputs[0]])
        integers = ir.node("QuantizeLinear", [relative.outputs[0], step, zero_point])
        nodes = [*magnitudes, largest, positive, relative, integers]
        return nodes, QuantizedInput(integers.outputs[0], step, zero_point, positive.outputs[0])


Activations = FixedScale | RowScales


def choose(
    known: InputStatistics | None, limit: float = FIXED_ERROR_MULTIPLE
) -> tuple[Activations, str]:
    """Return how an input is rounded, by rows if it was not observed, and why.

    Args:
        limit: the most by which the error of a fixed scale may exceed that of a scale for each row
    """
    if known is None or not known.finite:
        return RowScales(known is not None and known.nonnegative), "no finite numbers were observed"
    rows = RowScales(known.nonnegative)
    if known.range is None:
        return rows, "calibrated on random sources, which say little about the range of others"
    fixed = FixedScale.of(known.range, known.rows)
    multiple = _error(fixed, known.rows) / max(_error(rows, known.rows), float(LEAST))
    reason = f"a fixed scale has {multiple:.3g} times the error of a scale for each row"
    return (fixed if multiple <= limit else rows), reason


def _error(activations: Activations, rows: Float) -> float:
    sizes = np.linalg.norm(rows, axis=1)
    rows, sizes = rows[sizes > 0], sizes[sizes > 0]
    if not len(rows):
        return 0.0
    errors = np.linalg.norm(activations.round(rows) - rows, axis=1) / sizes
    return float(np.sqrt(np.mean(errors**2)))


def table(graph: ir.Graph, name: str, rounded: IntegerWeight) -> tuple[ir.Value, ir.Value]:
    """Add the integers [V, D] and scales [V], one per row, of a table to the graph."""
    return (
        new_weight(graph, f"{name}.int8", np.ascontiguousarray(rounded.integers.T)),
        new_weight(graph, f"{name}.scale", rounded.scales[0]),
    )


def look_up(graph: ir.Graph, name: str, rounded: IntegerWeight, ids: ir.Value) -> list[ir.Node]:
    """Make nodes that gather the rows [..., D] at ids [...] and dequantize only those, to fp32."""
    integers, scale = table(graph, name, rounded)
    rows = ir.node("Gather", [integers, ids])
    numbers = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT})
    scales = ir.node("Gather", [scale, ids])
    last_axis = new_weight(graph, "last_axis", np.array([-1]))
    columns = ir.node("Unsqueeze", [scales.outputs[0], last_axis])
    product = ir.node("Mul", [numbers.outputs[0], columns.outputs[0]])
    return [rows, numbers, scales, columns, product]


class Int8(Scheme):
    """The scheme of 8-bit weights and activations."""

    name = "int8"
    bits = 8
    error = 0.15
    """The error that is allowed; 8-bit activations cause 1 to 2 %, and much more with outliers."""

    def form(self, known: InputStatistics | None) -> Int8Form:
        """Return the form of a product, which depends on its inputs."""
        return Int8Form(*choose(known))

    lookup = staticmethod(look_up)


@dataclass(frozen=True)
class Int8Form(ProductForm):
    """The form of 8-bit products."""

    activations: Activations
    reason: str

    @property
    def chosen(self) -> tuple[str, str]:
        """The rounding of activations, and why."""
        return self.activations.name, self.reason

    def round_inputs(self, rows: Float) -> Float:
        """Return inputs [R, K] as the product reads them."""
        return self.activations.round(rows)

    def product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a rounded weight."""
        weight = new_weight(graph, f"{name}.int8", rounded.integers)
        scale = new_weight(graph, f"{name}.scale", rounded.scales[0])
        nodes, integers = self.activations.quantize(graph, x)
        inputs: list[ir.Value | None] = [integers.values, weight, integers.scale, scale]
        inputs.append(integers.zero_point)
        if integers.row_scale is None and bias is not None:
            inputs += [None, bias]
            bias = None
        product = ir.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT)
        return [*nodes, product, *_scaled(product.outputs[0], integers, bias)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a table.

        `com.microsoft.QGemm` accepts the table in the layout of embeddings, but only 2 axes. Its
        bias is integers, which costs more than adding it to the logits.
        """
        width, rows = rounded.integers.shape
        weight, scale = table(graph, name, rounded)
        nodes, integers = self.activations.quantize(graph, x)
        flat = ir.node(
            "Reshape", [integers.values, new_weight(graph, "rows", np.array([-1, width]))]
        )
        zeros = new_weight(graph, f"zeros_{rows}", np.zeros(rows, np.int8))
        inputs = [flat.outputs[0], integers.scale, integers.zero_point, weight, scale, zeros]
        product = ir.node("QGemm", inputs, {"transB": 1}, domain=MICROSOFT)
        shape = ir.node("Shape", [x], {"end": -1})
        vocabulary = new_weight(graph, "vocabulary", np.array([rows]))
        logits_shape = ir.node("Concat", [shape.outputs[0], vocabulary], {"axis": 0})
        logits = ir.node("Reshape", [product.outputs[0], logits_shape.outputs[0]])
        scaled = _scaled(logits.outputs[0], integers, bias)
        return [*nodes, flat, product, shape, logits_shape, logits, *scaled]


def _scaled(product: ir.Value, integers: QuantizedInput, bias: ir.Value | None) -> list[ir.Node]:
    nodes = []
    if integers.row_scale is not None:
        nodes.append(ir.node("Mul", [product, integers.row_scale]))
        product = nodes[-1].outputs[0]
    if bias is not None:
        nodes.append(ir.node("Add", [product, bias]))
    return nodes
