"""The weights that int8 and int4 round, by the modules of the trained model.

Products may be one: query, key and value that are packed, or an embedding and the projection to
logits that it is tied to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dragoman.errors import DragomanError, shown
from dragoman.onnx_graphs.graph_files import module_of

from ..graph_values import is_weight, producer, users
from ..targets import Graphs


def embedding_tables(graphs: Graphs) -> dict[str, ir.Value]:
    """Return the tables in which token ids are looked up, by name, each once."""
    tables: dict[str, ir.Value] = {}
    for model, spec in graphs.values():
        ids = {t.name for t in spec.inputs if t.role in ("source", "token")}
        for node in model.graph:
            if node.op_type == "Gather" and node.inputs[1] is not None:
                table = node.inputs[0]
                if node.inputs[1].name in ids and table is not None and is_weight(table, 2):
                    tables.setdefault(table.name or "", table)
    return tables


def embedding_widths(graphs: Graphs) -> set[int]:
    """Return the widths of embeddings."""
    widths = set()
    for table in embedding_tables(graphs).values():
        assert table.shape is not None and isinstance(table.shape[1], int)
        widths.add(table.shape[1])
    return widths


def tied_product_input(decoder: ir.Model, table: str) -> ir.Value | None:
    """Return the factor of a table's product, if it is also the projection to logits."""
    value = decoder.graph.initializers.get(table)
    for node in [] if value is None else users(value):
        if node.op_type == "Transpose":
            return users(node.outputs[0])[0].inputs[0]
    return None


MODULE = re.compile(r"(?:^|\+)([^+]+?)\.weight(?=[.+]|$)")
"""The modules in the name of a weight, to which passes append what they made of it."""


@dataclass(frozen=True)
class RoundedProduct:
    """A weight that a precision rounds, for the products and lookups that read it."""

    weight: str
    """The weight's name in the graphs."""
    modules: tuple[str, ...]
    """Modules of the trained model, such as "decoder.layers.3.feed_forward.inner"."""
    graphs: tuple[str, ...]
    parameters: int

    @property
    def name(self) -> str:
        """The name for users: `a.b.query+key` for the modules a.b.query and a.b.key."""
        first, *others = self.modules
        parent = first.rpartition(".")[0] + "."
        return "+".join([first, *(module.removeprefix(parent) for module in others)])


def rounded_products(graphs: Graphs) -> list[RoundedProduct]:
    """Return the weights of graphs after the target's own passes, in the order of computation."""
    tables = set(embedding_tables(graphs))
    found: dict[str, tuple[list[str], list[str], int]] = {}
    for graph, (model, _) in graphs.items():
        for node in model.graph:
            for value, own in _weights(node, tables):
                assert value.const_value is not None
                size = value.const_value.size
                modules, within, _ = found.setdefault(value.name or "", ([], [], size))
                modules.extend(own)
                within.append(graph)
    return [
        RoundedProduct(name, tuple(dict.fromkeys(modules)), tuple(dict.fromkeys(within)), size)
        for name, (modules, within, size) in found.items()
    ]


def kept_products(
    products: Sequence[RoundedProduct], names: Collection[str]
) -> tuple[RoundedProduct, ...]:
    """Return the products with these names, or with modules of these names or within them."""
    kept = set()
    for name in names:
        meant = [p for p in products if name in (p.name, *p.modules)]
        if not meant:  # a layer, for example
            meant = [p for p in products if any(own.startswith(f"{name}.") for own in p.modules)]
        if not meant:
            raise DragomanError(_unknown(products, name))
        kept.update(meant)
    return tuple(product for product in products if product in kept)


def _weights(node: ir.Node, tables: Collection[str]) -> Iterator[tuple[ir.Value, Sequence[str]]]:
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
    return MODULE.findall(weight.name or "") or [module_of(node)]


def _unknown(products: Sequence[RoundedProduct], name: str) -> str:
    parts = [module.split(".") for product in products for module in product.modules]
    known = dict.fromkeys(".".join(part[:n]) for part in parts for n in range(len(part), 0, -1))
    close, *_ = difflib.get_close_matches(name, known, n=1) or known
    return (
        f"keep-fp32: expected the name of a product, a module or a layer, such as {close}, found "
        f"{shown(name)}: dragoman sensitivity lists them"
    )
