"""The target openvino: standard graphs of encoder-only models, for OpenVINO's kernels.

In int8, products read `DequantizeLinear` of weights, and of inputs that `QuantizeLinear` rounds
with a fixed scale (opset 13); OpenVINO turns them into products of integers. Where a fixed scale is
unknown or too coarse, OpenVINO rounds inputs itself, in groups of 32 of a row: they are judged by a
scale for each row, which is coarser.
"""

from __future__ import annotations

import onnx_ir as ir

from .graph_values import users
from .precision.calibration import InputStatistics
from .precision.int8 import FixedScale, Int8, Int8Form, choose
from .precision.rounding import IntegerWeight
from .precision.weight_only import WeightOnly
from .targets import Schemes, TargetRecipe

FIXED_ERROR_MULTIPLE = 4.0
"""The most by which the error of a fixed scale may exceed that of a scale for each row.

Products of integers take half the time of those whose inputs OpenVINO rounds. MiniLM has no larger
errors than 3.8; the cosine of its embeddings is 0.9945 in place of 0.998."""


class QDQ(Int8):
    """The scheme of 8-bit weights and inputs as pairs of quantization and dequantization."""

    name = "int8-qdq"

    def form(self, known: InputStatistics | None) -> Int8Form:
        """Return the form of a product, which depends on its inputs."""
        return QDQForm(*choose(known, FIXED_ERROR_MULTIPLE))


class QDQForm(Int8Form):
    """The form of products of pairs."""

    @property
    def chosen(self) -> tuple[str, str]:
        """The rounding of inputs, and why."""
        fixed = isinstance(self.activations, FixedScale)
        return FixedScale.name if fixed else "scales of groups, by OpenVINO", self.reason

    def product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a rounded weight."""
        nodes, x = self._read(graph, x)
        return [*nodes, *WEIGHTS.product(graph, name, rounded, x, bias)]

    def table_product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make the nodes of a product by a table."""
        nodes, x = self._read(graph, x)
        return [*nodes, *WEIGHTS.table_product(graph, name, rounded, x, bias)]

    def _read(self, graph: ir.Graph, x: ir.Value) -> tuple[list[ir.Node], ir.Value]:
        if not isinstance(self.activations, FixedScale):
            return [], x
        nodes, integers = self.activations.quantize(graph, x)
        for user in users(integers.values):
            if user.op_type == "DequantizeLinear":
                return nodes, user.outputs[0]
        inputs = [integers.values, integers.scale, integers.zero_point]
        nodes.append(ir.node("DequantizeLinear", inputs))
        return nodes, nodes[-1].outputs[0]


WEIGHTS = WeightOnly(8, None, QDQ.error)

RECIPE = TargetRecipe(
    passes=lambda graph, model, precision: (),
    schemes=lambda precision, graphs, widths: Schemes(dict.fromkeys(graphs, QDQ()), QDQ()),
    uncalibrated_warning="int8 without calibration (--calibration): calls take up to 1.5 times as "
    "long, and are more exact",
)
