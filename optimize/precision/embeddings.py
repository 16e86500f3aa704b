"""The tables of a bundle's graphs in which token ids are looked up."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from dragoman.runtime.format.contract import GraphSpec

from ..graph_values import is_weight, users


def embedding_tables(graphs: Mapping[str, tuple[ir.Model, GraphSpec]]) -> dict[str, ir.Value]:
    """By name; a table that both graphs hold appears once."""
    tables: dict[str, ir.Value] = {}
    for model, spec in graphs.values():
        ids = {t.name for t in spec.inputs if t.role in ("source", "token")}
        for node in model.graph:
            if node.op_type == "Gather" and node.inputs[1] is not None:
                table = node.inputs[0]
                if node.inputs[1].name in ids and table is not None and is_weight(table, 2):
                    tables.setdefault(table.name or "", table)
    return tables


def embedding_widths(graphs: Mapping[str, tuple[ir.Model, GraphSpec]]) -> set[int]:
    """The widths that embeddings have."""
    widths = set()
    for table in embedding_tables(graphs).values():
        assert table.shape is not None and isinstance(table.shape[1], int)
        widths.add(table.shape[1])
    return widths


def tied_product_input(decoder: ir.Model, table: str) -> ir.Value | None:
    """What a table is multiplied by, if it is also the projection to logits."""
    value = decoder.graph.initializers.get(table)
    for node in [] if value is None else users(value):
        if node.op_type == "Transpose":
            return users(node.outputs[0])[0].inputs[0]
    return None
