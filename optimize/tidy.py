"""What is computed twice or for nothing goes; what is known now is computed now."""

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
"""The most elements of a constant that folding may make: shapes, not copies of weights."""


@dataclass(frozen=True)
class Tidy:
    """Constants folded, common subexpressions merged, unused nodes removed. Matches: nodes gone."""

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
        gone = before - len(list(model.graph.all_nodes()))
        return Changes(max(0, gone), uncounted=True)
