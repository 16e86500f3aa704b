"""Quantizing the weights of products and embeddings.

A weight is quantized if the relative error of its product on calibration data is at most the
scheme's `error`; otherwise the refusal states the measured error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dragoman.runtime.format.manifest import Choice, Refusal

from ..graph_pass import Changes, GraphPass, Property
from ..graph_values import MICROSOFT, floats, is_weight, replace_by, users
from .calibration import Calibration, InputStatistics
from .rounding import Float, IntegerWeight, parts_of_outputs, round_weight

QUANTIZATION_TOLERANCE = 2.0
"""The largest difference that quantization may cause in an output, relative to its largest value.

Two outputs of that size cannot differ more, so a larger difference means divergence. Untrained
models reach 1. The scheme's `error` limits the error of each product; parity decides about the
quality of the model on its task."""

KEPT = "kept in fp32, as requested"
"""The reason of the refusal of a weight that the user keeps in fp32."""


class Scheme:
    """A quantization scheme: how weights are rounded, and which nodes compute with them."""

    name: str
    """In the name of the pass."""
    bits: int
    block: int | None = None
    """Number of inputs that share a scale; None: all of them."""
    error: float
    """The largest relative error of a product with which a weight is quantized."""
    scale_type: type[np.floating[Any]] = np.float32
    """Number format of the scales."""

    def form(self, known: InputStatistics | None) -> ProductForm:
        """Return how a product by a weight is computed, by its inputs' statistics, if known."""
        raise NotImplementedError

    def lookup(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, ids: ir.Value
    ) -> list[ir.Node]:
        """Make nodes for the columns [..., K] of a weight [K, N] at ids [...]."""
        raise NotImplementedError


class ProductForm:
    """How a product by a rounded weight is computed."""

    chosen: tuple[str, str] | None = None
    """The choice and its reason, see `records.Choice`; None without alternatives."""

    def round_inputs(self, rows: Float) -> Float:
        """Return inputs [R, K] as the product reads them, after their own quantization."""
        return rows

    def product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make nodes for x [..., K] @ weight [K, N] + bias; the last one computes the result."""
        raise NotImplementedError

    def table_product(
        self, graph: ir.Graph, name: str, rounded: IntegerWeight, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Make nodes like `product`, for a weight that the scheme's `lookup` reads too."""
        return self.product(graph, name, rounded, x, bias)


class OneForm(Scheme, ProductForm):
    """A scheme whose products all have one form, its own."""

    def __init__(self, name: str, bits: int, block: int | None, error: float) -> None:
        self.name, self.bits, self.block, self.error = name, bits, block, error

    def form(self, known: InputStatistics | None) -> Self:
        """Return the scheme itself."""
        return self


class RoundedWeight(NamedTuple):
    """A rounded weight, and the form and the error of its product."""

    rounded: IntegerWeight
    form: ProductForm
    error: float
    """Relative error on calibration data; NaN if the inputs were not observed."""


class ProductError(NamedTuple):
    """The error of a product whose weight is rounded."""

    found: float
    """Relative error on calibration data; NaN if the inputs were not observed."""
    allowed: float
    """The largest error with which the weight is quantized."""

    @property
    def suffices(self) -> bool:
        """Whether the weight is quantized."""
        return self.found <= self.allowed


class RoundedWeights:
    """The weights of a graph's products, each rounded when it is first requested."""

    def __init__(self, scheme: Scheme, calibration: Calibration) -> None:
        self.scheme = scheme
        self._calibration = calibration
        self._known: dict[str, RoundedWeight] = {}

    def of(self, weight: ir.Value, x: ir.Value) -> RoundedWeight:
        """Return the rounded form of a weight [K, N] that x is multiplied by; see `round_for`.

        Layers may share the weight: the inputs of all of them count.
        """
        name = weight.name or ""
        if name not in self._known:
            multiplied = [user.inputs[0] for user in users(weight) if user.op_type == "MatMul"]
            known = self._calibration.of_all(value for value in multiplied if value is not None)
            calibration = Calibration({} if known is None else {x.name or "": known})
            self._known[name] = round_for(floats(weight), x, self.scheme, calibration)
        return self._known[name]


@dataclass(frozen=True)
class QuantizeWeights(GraphPass):
    """Quantizes all products by weights, and the embedding tables that are listed."""

    products: RoundedWeights
    embedding: Scheme
    tables: Mapping[str, RoundedWeight]
    """Tables [V, D] by name, rounded as [D, V] for the product that each is tied to, so that graphs
    that share a table use the same integers, or refuse it alike."""
    tolerance: float
    kept: frozenset[str] = frozenset()
    """Names of weights and tables that stay in fp32 because the user requests it."""
    ensures: frozenset[Property] = frozenset({"quantized"})

    @property
    def name(self) -> str:
        """The name with the scheme's."""
        return f"weights-{self.products.scheme.name}"

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
        matches, refusals, choices = 0, [], []
        for node in list(model.graph):
            if not self._is_candidate(node):
                continue
            name, operator = node.name or "", node.op_type
            done = self._replace(model.graph, node)
            if isinstance(done, str):
                refusals.append(Refusal(name, operator, done))
                continue
            matches += 1
            if operator == "MatMul" and done.chosen is not None:
                choices.append(Choice(name, operator, *done.chosen))
        if any(node.domain == MICROSOFT for node in model.graph):
            model.opset_imports.setdefault(MICROSOFT, 1)
        RemoveUnusedNodesPass()(model)
        return Changes(matches, tuple(refusals), choices=tuple(choices))

    def errors(self, model: ir.Model) -> dict[str, ProductError]:
        """Return the error of every weight that can be rounded, by name, also if it is kept."""
        found = {}
        for node in model.graph:
            weight = self._weight(node) if self._is_candidate(node) else None
            if weight is not None:
                _, found[weight.name or ""] = self._rounded(node, weight)
        return found

    def _is_candidate(self, node: ir.Node) -> bool:
        return node.op_type == "MatMul" or (
            node.op_type == "Gather" and self._is_table(node.inputs[0])
        )

    def _is_table(self, value: ir.Value | None) -> bool:
        return value is not None and value.name in self.tables and is_weight(value, 2)

    def _weight(self, node: ir.Node) -> ir.Value | None:
        value = node.inputs[0 if node.op_type == "Gather" else 1]
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type == "Transpose":
            value = producer.inputs[0] if self._is_table(producer.inputs[0]) else None
        return value if is_weight(value, 2) else None

    def _rounded(self, node: ir.Node, weight: ir.Value) -> tuple[RoundedWeight, ProductError]:
        if self._is_table(weight):
            rounded = self.tables[weight.name or ""]
            return rounded, ProductError(rounded.error, self.embedding.error)
        assert node.inputs[0] is not None
        rounded = self.products.of(weight, node.inputs[0])
        return rounded, ProductError(rounded.error, self.products.scheme.error)

    def _replace(self, graph: ir.Graph, node: ir.Node) -> ProductForm | str:
        weight = self._weight(node)
        if weight is None:
            return "expected a product by a weight, found a product of two activations"
        name = weight.name or ""
        if name in self.kept:
            return KEPT
        (rounded, form, _), error = self._rounded(node, weight)
        if not error.suffices:
            return (
                f"expected an error of at most {error.allowed:g}, found {error.found:.3g}: not "
                "quantized"
            )
        if node.op_type == "Gather":
            assert node.inputs[1] is not None
            replace_by(graph, node, self.embedding.lookup(graph, name, rounded, node.inputs[1]))
            return form
        is_table = self._is_table(weight)
        make = form.table_product if is_table else form.product
        assert node.inputs[0] is not None
        bias = _added_bias(node)
        end = node if bias is None else users(node.outputs[0])[0]
        replace_by(graph, end, make(graph, name, rounded, node.inputs[0], bias))
        return form


def round_for(
    numbers: Float, x: ir.Value | None, scheme: Scheme, calibration: Calibration
) -> RoundedWeight:
    """Round a weight [K, N], choose the form of its product, and measure its error.

    Args:
        x: the product's input, whose own quantization counts; None: the weight's error is measured
    """
    known = None if x is None else calibration.of(x)
    usable = known if known is not None and known.finite else None
    form = scheme.form(known)
    rounded = round_weight(
        numbers,
        bits=scheme.bits,
        block=scheme.block,
        moments=None if known is None else known.usable_moments,
        scale_type=scheme.scale_type,
    )
    if x is None:
        return RoundedWeight(rounded, form, _error_of_weight(rounded, numbers))
    if usable is None:
        return RoundedWeight(rounded, form, float("nan"))
    rows, most = usable.rows, MOST_MULTIPLICATIONS // numbers.size
    if len(rows) > most:
        rows = np.random.default_rng(0).permutation(rows)[:most]
    read = form.round_inputs(rows)
    return RoundedWeight(rounded, form, _error_of_product(rounded, numbers, rows, read))


MOST_MULTIPLICATIONS = 2**34
"""Multiplications to measure the error of a product: 64 rows of a table of 268 million numbers."""
NUMBERS_AT_ONCE = 2**22
"""Numbers of a weight that are compared at once: copies of a whole table would take gigabytes."""


def _error_of_product(rounded: IntegerWeight, numbers: Float, rows: Float, read: Float) -> float:
    """Return the root mean square of the relative errors of a product's rows.

    Every position counts equally, or one with values a hundred times larger would hide that its
    scale rounds the others to zero. Norms of rows [R, K] far below the median count as a tenth of
    it.
    """
    sizes, errors = np.zeros((2, len(rows)))
    for part in parts_of_outputs(numbers.shape, NUMBERS_AT_ONCE):
        exact = rows @ numbers[:, part]
        error = read @ rounded.dequantized(part) - exact
        sizes += np.einsum("rn,rn->r", exact, exact)
        errors += np.einsum("rn,rn->r", error, error)
    norms = np.sqrt(sizes)
    floor = max(0.1 * float(np.median(norms)), 1e-30)
    return float(np.sqrt(np.mean(errors / np.maximum(norms, floor) ** 2)))


def _error_of_weight(rounded: IntegerWeight, numbers: Float) -> float:
    size = error = 0.0
    for part in parts_of_outputs(numbers.shape, NUMBERS_AT_ONCE):
        size += float(np.square(numbers[:, part]).sum())
        error += float(np.square(rounded.dequantized(part) - numbers[:, part]).sum())
    return float(np.sqrt(error / max(size, 1e-30)))


def _added_bias(node: ir.Node) -> ir.Value | None:
    following = users(node.outputs[0])
    if len(following) != 1 or following[0].op_type != "Add" or node.outputs[0].is_graph_output():
        return None
    return next((value for value in following[0].inputs if is_weight(value, 1)), None)
