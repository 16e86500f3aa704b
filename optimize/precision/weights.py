"""Quantizing the weights of products and embeddings.

A weight is quantized if the relative error of its product, measured on calibration data, is at most
the scheme's `error`; otherwise it stays in fp32, and the refusal states the measured error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dragoman.runtime.format.records import Refusal

from ..graph_pass import Changes, Property
from ..graph_values import MICROSOFT, floats, is_weight, users
from .calibration import Calibration
from .rounding import Float, Rounded, round_weight


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

    def round_inputs(self, rows: Float) -> Float:
        """Inputs [R, K] as the product reads them, after their own quantization."""

    def product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Nodes for x [..., K] @ weight [K, N] + bias; the last one computes the result."""

    def table_product(
        self, graph: ir.Graph, name: str, rounded: Rounded, x: ir.Value, bias: ir.Value | None
    ) -> list[ir.Node]:
        """Like `product`, for a weight that `lookup` reads, too."""

    def lookup(self, graph: ir.Graph, name: str, rounded: Rounded, ids: ir.Value) -> list[ir.Node]:
        """Nodes for the columns [..., K] of a weight [K, N] at ids [...]."""


@dataclass(frozen=True)
class QuantizeWeights:
    """Quantizes all products by weights, and the embedding tables that are listed.

    Attributes:
        scheme: of products
        embedding: the scheme of tables
        tables: tables [V, D] by name, rounded as [D, V], with the error of the product that each is
            tied to; graphs that share a table thus use the same integers, or refuse it alike
        calibration: observed inputs of products
        tolerance: see `GraphPass`
    """

    scheme: Scheme
    embedding: Scheme
    tables: Mapping[str, tuple[Rounded, float]]
    calibration: Calibration
    tolerance: float
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset({"quantized"})

    @property
    def name(self) -> str:
        return f"weights-{self.scheme.name}"

    def apply(self, model: ir.Model) -> Changes:
        matches, refusals = 0, []
        for node in list(model.graph):
            if node.op_type == "Gather" and self._is_table(node.inputs[0]):
                refused = self._replace_lookup(model.graph, node)
                matches += refused is None
                refusals += [refused] if refused is not None else []
            elif node.op_type == "MatMul":
                refused = self._replace_product(model.graph, node)
                matches += refused is None
                refusals += [refused] if refused is not None else []
        if any(node.domain == MICROSOFT for node in model.graph):
            model.opset_imports.setdefault(MICROSOFT, 1)
        RemoveUnusedNodesPass()(model)
        return Changes(matches, tuple(refusals))

    def _is_table(self, value: ir.Value | None) -> bool:
        return value is not None and value.name in self.tables and is_weight(value, 2)

    def _replace_product(self, graph: ir.Graph, node: ir.Node) -> Refusal | None:
        x, second = node.inputs
        assert x is not None and second is not None
        table = second.producer()
        if table is not None and table.op_type == "Transpose" and self._is_table(table.inputs[0]):
            assert table.inputs[0] is not None and table.inputs[0].name is not None
            name = table.inputs[0].name
            (rounded, error), make = self.tables[name], self.embedding.table_product
            allowed = self.embedding.error
        elif is_weight(second, 2):
            name, make = second.name or "", self.scheme.product
            rounded, error = round_for(floats(second), x, self.scheme, self.calibration)
            allowed = self.scheme.error
        else:
            return _refuse(node, "expected a product by a weight, found one of two activations")
        if not error <= allowed:
            return _refuse(node, _too_inaccurate(error, allowed))
        bias = _added_bias(node)
        end = node if bias is None else users(node.outputs[0])[0]
        _replace(graph, end, make(graph, name, rounded, x, bias))
        return None

    def _replace_lookup(self, graph: ir.Graph, node: ir.Node) -> Refusal | None:
        table, ids = node.inputs
        assert table is not None and ids is not None and table.name is not None
        rounded, error = self.tables[table.name]
        if not error <= self.embedding.error:
            return _refuse(node, _too_inaccurate(error, self.embedding.error))
        _replace(graph, node, self.embedding.lookup(graph, table.name, rounded, ids))
        return None


def round_for(
    numbers: Float, x: ir.Value | None, scheme: Scheme, calibration: Calibration
) -> tuple[Rounded, float]:
    """Round a weight [K, N]; return it with the relative error of its product.

    Args:
        x: the input of the product, whose own quantization adds to the error; None if the weight is
            not multiplied: the error is then that of the weight itself

    Returns:
        the rounded weight and the error, which is NaN if x was not observed
    """
    known = None if x is None else calibration.of(x)
    usable = known is not None and known.finite
    rounded = round_weight(
        numbers,
        bits=scheme.bits,
        block=scheme.block,
        moments=known.moments if known is not None and usable else None,
        scale_type=scheme.scale_type,
    )
    if x is None:
        return rounded, _relative(rounded.dequantized(), numbers)
    if known is None or not usable:
        return rounded, float("nan")
    product = scheme.round_inputs(known.rows) @ rounded.dequantized()
    return rounded, _relative_by_row(product, known.rows @ numbers)


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


def _too_inaccurate(error: float, allowed: float) -> str:
    return f"expected an error of at most {allowed:g}, found {error:.3g}: not quantized"


def _added_bias(node: ir.Node) -> ir.Value | None:
    """The bias that is added to a product, if the sum is the product's only use."""
    following = users(node.outputs[0])
    if len(following) != 1 or following[0].op_type != "Add" or node.outputs[0].is_graph_output():
        return None
    return next((value for value in following[0].inputs if is_weight(value, 1)), None)


def _replace(graph: ir.Graph, node: ir.Node, nodes: list[ir.Node]) -> None:
    old, new = node.outputs[0], nodes[-1].outputs[0]
    for made in nodes:
        made.metadata_props.update(node.metadata_props)
    graph.insert_before(node, nodes)
    new.shape, new.type = old.shape, old.type
    name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name, new.name = f"{name}.before", name
    graph.remove(node, safe=True)


def _refuse(node: ir.Node, reason: str) -> Refusal:
    return Refusal(node.name or "", node.op_type, reason)
