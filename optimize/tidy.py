"""Constant folding, common-subexpression and dead-node elimination."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    NameFixPass,
    RemoveUnusedNodesPass,
)
from onnxscript import optimizer

from .graph_pass import ROUNDING, Changes, Property

SMALL = 1024
"""Folding creates constants of at most this many elements: shapes, but no copies of weights."""


@dataclass(frozen=True)
class Tidy:
    """Folds constants, merges common subexpressions, removes unused nodes.

    Counts the nodes removed.
    """

    name: str = "tidy"
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset()
    tolerance: float = ROUNDING

    def apply(self, model: ir.Model) -> Changes:
        before = len(list(model.graph.all_nodes()))
        optimizer.fold_constants(model, input_size_limit=SMALL, output_size_limit=SMALL)
        ir.passes.Sequential(
            LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            CommonSubexpressionEliminationPass(),
            IdentityEliminationPass(),
            RemoveUnusedNodesPass(),
            NameFixPass(),
        )(model)
        removed = before - len(list(model.graph.all_nodes()))
        return Changes(max(0, removed), uncounted=True)
