"""Expanding the masks of Attention nodes to the shape of the scores.

ONNX allows a mask with one row for all queries (Attention, opset 23: it must be broadcastable to
the scores). ONNX Runtime's CPU kernel does not accept one, so the row is expanded here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph_pass import ROUNDING, Changes, Property
from ..graph_values import new_weight
from .matching import rank


@dataclass(frozen=True)
class ExpandMasks:
    """Expands masks [..., 1, K] to [..., Q, K], unless there is known to be one query."""

    name: str = "attention-mask"
    requires: frozenset[Property] = frozenset({"opset 23"})
    ensures: frozenset[Property] = frozenset()
    tolerance: float = ROUNDING

    def apply(self, model: ir.Model) -> Changes:
        graph = model.graph
        matches = 0
        for node in list(graph):
            if node.op_type != "Attention" or node.domain or not _one_row(node):
                continue
            query, mask = node.inputs[0], node.inputs[3]
            assert query is not None and mask is not None
            axis = 2 if rank(query) == 4 else 1
            shape = ir.node("Shape", [query], {"start": axis, "end": axis + 1})
            one = new_weight(graph, "as_it_is", np.array([1]))
            whole = ir.node("Concat", [shape.outputs[0], one], {"axis": 0})
            wide = ir.node("Expand", [mask, whole.outputs[0]])
            wide.outputs[0].type = mask.type
            graph.insert_before(node, [shape, whole, wide])
            node.replace_input_with(3, wide.outputs[0])
            matches += 1
        return Changes(matches)


def _one_row(node: ir.Node) -> bool:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    query = node.inputs[0]
    if mask is None or query is None or mask.shape is None or query.shape is None:
        return False
    queries = query.shape[2 if rank(query) == 4 else 1]
    return len(mask.shape) >= 2 and mask.shape[-2] == 1 and queries != 1


EXPAND_MASKS = ExpandMasks()
