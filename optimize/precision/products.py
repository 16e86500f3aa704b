"""The weights that int8 and int4 round, by the modules of the trained model that they belong to.

A weight of a graph may be one of several modules, whose products are one: query, key and value
that are packed; or an embedding and the projection to logits that it is tied to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dragoman.errors import DragomanError
from dragoman.origins import module_of

from ..graph_values import is_weight, producer
from ..recipe import Graphs
from .embeddings import embedding_tables

MODULE = re.compile(r"(?:^|\+)([^+]+?)\.weight(?=[.+]|$)")
"""In the name of a weight; passes append to it what they made of it."""


@dataclass(frozen=True)
class RoundedProduct:
    """A weight that a precision rounds, and what it is multiplied with or looked up for.

    Attributes:
        weight: its name in the graphs
        modules: of the trained model, such as "decoder.layers.3.feed_forward.inner"
        graphs: that hold it
        parameters: how many numbers it has
    """

    weight: str
    modules: tuple[str, ...]
    graphs: tuple[str, ...]
    parameters: int

    @property
    def name(self) -> str:
        """For people: `a.b.query+key+value` of the modules a.b.query, a.b.key and a.b.value."""
        first, *others = self.modules
        parent = first.rpartition(".")[0] + "."
        return "+".join([first, *(module.removeprefix(parent) for module in others)])

    def is_called(self, name: str) -> bool:
        """Whether it is meant by its own name or that of one of its modules."""
        return name == self.name or name in self.modules

    def is_within(self, module: str) -> bool:
        """Whether one of its modules is inside another, such as a layer."""
        return any(own.startswith(f"{module}.") for own in self.modules)


def rounded_products(graphs: Graphs) -> list[RoundedProduct]:
    """Those of graphs after the target's own passes, in the order of computation."""
    tables = set(embedding_tables(graphs))
    modules: dict[str, list[str]] = {}
    within: dict[str, list[str]] = {}
    values: dict[str, ir.Value] = {}
    for graph, (model, _) in graphs.items():
        for node in model.graph:
            for value, own in _weights(node, tables):
                name = value.name or ""
                values[name] = value
                modules.setdefault(name, []).extend(own)
                within.setdefault(name, []).append(graph)
    return [
        RoundedProduct(
            name, _distinct(modules[name]), _distinct(within[name]), _parameters(values[name])
        )
        for name in values
    ]


def kept_products(
    products: Sequence[RoundedProduct], names: Collection[str]
) -> tuple[RoundedProduct, ...]:
    """The products that names mean: of products, modules, or what holds modules, such as a layer.

    Raises:
        DragomanError: a name means none.
    """
    kept = set()
    for name in names:
        meant = [p for p in products if p.is_called(name)]
        meant = meant or [p for p in products if p.is_within(name)]
        if not meant:
            raise DragomanError(_unknown(products, name))
        kept.update(meant)
    return tuple(product for product in products if product in kept)


def _weights(node: ir.Node, tables: Collection[str]) -> Iterator[tuple[ir.Value, Sequence[str]]]:
    """The weight that a node multiplies by or looks up, with its modules."""
    if node.op_type == "Gather":
        table = node.inputs[0]
        if table is not None and table.name in tables:
            yield table, _modules(table, node)
    elif node.op_type == "MatMul":
        weight = node.inputs[1]
        transpose = producer(weight, "Transpose")
        table = None if transpose is None else transpose.inputs[0]
        if table is not None and table.name in tables:
            yield table, [*_modules(table, node), module_of(node)]
        elif weight is not None and is_weight(weight, 2):
            yield weight, _modules(weight, node)


def _modules(weight: ir.Value, node: ir.Node) -> list[str]:
    """By the weight's name; where it has none of the checkpoint's, by the node's origin."""
    return MODULE.findall(weight.name or "") or [module_of(node)]


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _parameters(weight: ir.Value) -> int:
    assert weight.const_value is not None
    return weight.const_value.size


def _unknown(products: Sequence[RoundedProduct], name: str) -> str:
    parts = [module.split(".") for product in products for module in product.modules]
    known = dict.fromkeys(".".join(part[:n]) for part in parts for n in range(len(part), 0, -1))
    close, *_ = difflib.get_close_matches(name, known, n=1) or known
    return (
        f"keep-fp32: expected the name of a product, a module or a layer, such as {close}, found "
        f"{name!r}: dragoman sensitivity lists them"
    )
