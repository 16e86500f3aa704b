"""Quantizing the weights of products and embeddings.

A weight is quantized if the relative error of its product, measured on calibration data, is at most
the scheme's `error`; otherwise it stays in fp32, and the refusal states the measured error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dragoman.runtime.format.records import Choice, Refusal

from ..graph_pass import Changes, Property
from ..graph_values import MICROSOFT, floats, is_weight, replace_by, users
from .calibration import Calibration, Inputs
from .rounding import Float, Rounded, round_weight

QUANTIZATION_TOLERANCE = 2.0
"""What quantization may change in an output, relative to its largest value: two outputs of that
size cannot be further apart, so a larger difference means that something diverged. Untrained models
reach 1. Each product is held to its scheme's `error`; whether the quality of the whole suffices is
for parity to decide, on the model's own task."""

KEPT = "kept in fp32, as asked"
"""Why a weight is refused that the user wants to keep."""


class Scheme(Protocol):
    """A quantization scheme: how weights are rounded, and which nodes compute with them.

    Attributes:
        name: in the name of the pass
        bits: of the integers
        block: number of inputs that share a scale; None: all of them
        error: the largest relative error of a product with which a weight is quantized
        scale_type: of the scales
    """

    name: str
    bits: int
    block: int | None
    error: float
    scale_type: type[np.floating[Any]]

    def form(self, known: Inputs | None) -> Form:
        """How a product by a weight is computed.

        Args:
            known: its observed inputs; None: they were not observed
        """

    def lookup(self, graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
        """Nodes for the columns [..., K] of a weight [K, N] at ids [...]."""


class Form(Protocol):
    """How a product is computed whose weight is rounded.

    Attributes:
        chosen: see `records.Choice`; None: there was nothing to choose
    """

    @property
    def chosen(self) -> tuple[str, str] | None: ...

    def round_inputs(self, rows: Float) -> Float:
        """Inputs [R, K] as the product reads them, after their own quantization."""

    def product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Nodes for x [..., K] @ weight [K, N] + bias; the last one computes the result."""

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Like `product`, for a weight that the scheme's `lookup` reads, too."""


class RoundedWeight(NamedTuple):
    """
    Attributes:
        form: of its product
        error: of its product, relative, on calibration data; NaN if its inputs were not observed
    """

    rounded: Rounded
    form: Form
    error: float


class Error(NamedTuple):
    """Of a product whose weight is rounded.

    Attributes:
        found: relative, on calibration data; NaN if its inputs were not observed
        allowed: with which it is quantized
    """

    found: float
    allowed: float

    @property
    def suffices(self) -> bool:
        return self.found <= self.allowed


class RoundedWeights:
    """The weights of a graph's products, each rounded when it is first asked for.

    Args:
        calibration: observed inputs of the products
    """

    def __init__(self, scheme: Scheme, calibration: Calibration) -> None:
        self.scheme = scheme
        self._calibration = calibration
        self._known: dict[str, RoundedWeight] = {}

    def of(self, weight: ir.Value, x: ir.Value) -> RoundedWeight:
        """A weight [K, N] that x is multiplied by: see `round_for`."""
        name = weight.name or ""
        if name not in self._known:
            self._known[name] = round_for(floats(weight), x, self.scheme, self._calibration)
        return self._known[name]


@dataclass(frozen=True)
class QuantizeWeights:
    """Quantizes all products by weights, and the embedding tables that are listed.

    Attributes:
        products: their weights
        embedding: the scheme of tables
        tables: tables [V, D] by name, rounded as [D, V] for the product that each is tied to; so
            graphs that share a table use the same integers, or refuse it alike
        tolerance: see `GraphPass`
        kept: names of weights and tables that stay in fp32 because the user wants it
    """

    products: RoundedWeights
    embedding: Scheme
    tables: Mapping[str, RoundedWeight]
    tolerance: float
    kept: frozenset[str] = frozenset()
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset({"quantized"})

    @property
    def name(self) -> str:
        return f"weights-{self.products.scheme.name}"

    def apply(self, model: ir.Model) -> Changes:
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

    def errors(self, model: ir.Model) -> dict[str, Error]:
        """The error of every weight that can be rounded, by name, whether it is kept or not."""
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
        """The table or the weight of a candidate; None of a product of two activations."""
        value = node.inputs[0 if node.op_type == "Gather" else 1]
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type == "Transpose":
            value = producer.inputs[0] if self._is_table(producer.inputs[0]) else None
        return value if is_weight(value, 2) else None

    def _rounded(self, node: ir.Node, weight: ir.Value) -> tuple[RoundedWeight, Error]:
        if self._is_table(weight):
            rounded = self.tables[weight.name or ""]
            return rounded, Error(rounded.error, self.embedding.error)
        assert node.inputs[0] is not None
        rounded = self.products.of(weight, node.inputs[0])
        return rounded, Error(rounded.error, self.products.scheme.error)

    def _replace(self, graph: ir.Graph, node: ir.Node) -> Form | str:
        """Replace a candidate; in which form, or why it stays as it is."""
        weight = self._weight(node)
        if weight is None:
            return "expected a product by a weight, found one of two activations"
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
        x: the input of the product, whose own quantization adds to the error; None if the weight is
            not multiplied: the error is then that of the weight itself
    """
    known = None if x is None else calibration.of(x)
    usable = known is not None and known.finite
    form = scheme.form(known)
    rounded = round_weight(
        numbers,
        bits=scheme.bits,
        block=scheme.block,
        moments=known.moments if known is not None and usable else None,
        scale_type=scheme.scale_type,
    )
    if x is None:
        return RoundedWeight(rounded, form, _relative(rounded.dequantized(), numbers))
    if known is None or not usable:
        return RoundedWeight(rounded, form, float("nan"))
    product = form.round_inputs(known.rows) @ rounded.dequantized()
    return RoundedWeight(rounded, form, _relative_by_row(product, known.rows @ numbers))


def _relative_by_row(rounded: Float, exact: Float) -> float:
    """The root mean square of the relative errors of rows [R, N].

    Every position counts equally. Otherwise, a position with values a hundred times larger would
    dominate the error and hide that its scale rounds the other positions away. The norms of rows
    far below the median are taken as a tenth of the median.
    """
    norms = _norms(exact)
    floor = max(0.1 * float(np.median(norms)), 1e-30)
    errors = _norms(rounded - exact) / np.maximum(norms, floor)
    return float(np.sqrt(np.mean(errors**2)))


def _norms(rows: Float) -> Float:
    """[R, N] -> [R], without a temporary [R, N], which for a vocabulary takes gigabytes."""
    return np.asarray(np.sqrt(np.einsum("rn,rn->r", rows, rows)))


def _relative(rounded: Float, exact: Float) -> float:
    return float(np.linalg.norm(rounded - exact)) / max(float(np.linalg.norm(exact)), 1e-30)


def _added_bias(node: ir.Node) -> ir.Value | None:
    """The bias that is added to a product, if the sum is the product's only use."""
    following = users(node.outputs[0])
    if len(following) != 1 or following[0].op_type != "Add" or node.outputs[0].is_graph_output():
        return None
    return next((value for value in following[0].inputs if is_weight(value, 1)), None)
