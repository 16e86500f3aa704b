"""The TensorRT targets: the recipe for graphs that engines are built from.

Attention is decomposed where no fused kernel supports the head size: the compiler of TensorRT-RTX
1.7 fails in 16 bits with several queries and a head size that is not a multiple of 8. In the
decoder, attention over a source has several queries too, those of all rows of the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.model_spec import ModelSpec

from ..fusions.cleanup import Tidy
from ..graph_pass import FusionRule, GraphPass, RulePass
from ..graph_values import FLOATS, made_by, producer
from ..precision.weight_only import EngineWeightOnly
from ..targets import TargetRecipe
from .engine_bundle import build_engines

MULTIPLE = 8
"""The multiple that fused attention in 16 bits requires of head sizes."""


class _DecomposeAttention(FusionRule):
    """Attention (opset 23) over a source, with a bool mask -> softmax(q k^T) v.

    q is [G, H, Q, Dh], k and v are [G, H, S, Dh]. "Attention Is All You Need", section 3.2.1,
    equation 1.
    """

    name = "DecomposeAttention"

    def pattern(self, op: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        return op.Attention(query, key, value, mask, _outputs=["attended"])

    def refusal(
        self, context: Any, query: ir.Value, mask: ir.Value, attended: ir.Value, **_: Any
    ) -> str:
        node = made_by(attended)
        if set(node.attributes) - {"scale"}:
            return "expected no attributes but scale"
        if not _to_source(node):
            return "expected attention over a source, found one over a cache"
        if query.shape is None or len(query.shape) != 4 or not isinstance(query.shape[3], int):
            return f"expected queries [G, H, Q, Dh], found {query.shape}"
        if query.dtype not in FLOATS or mask.dtype != ir.DataType.BOOL:
            return f"expected a mask of bool, found {mask.dtype}"
        return ""

    def rewrite(
        self,
        op: Any,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        mask: ir.Value,
        attended: ir.Value,
    ) -> Any:
        assert query.shape is not None and query.dtype is not None
        size = query.shape[3]
        assert isinstance(size, int)
        dtype = query.dtype.numpy()
        scale = made_by(attended).attributes.get_float("scale", 1 / math.sqrt(size))
        scaled = op.Mul(query, op.Constant(value=ir.tensor(np.array(scale, dtype))))
        scores = op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2]))
        minus_infinity = op.Constant(value=ir.tensor(np.array(-np.inf, dtype)))
        return op.MatMul(op.Softmax(op.Where(mask, scores, minus_infinity), axis=-1), value)


def _to_source(node: ir.Node) -> bool:
    known = node.op_type == "Attention" and not node.domain
    return known and producer(node.inputs[1], "TensorScatter") is None


PRIMITIVE_ATTENTION = RulePass("primitive-attention", _DecomposeAttention.rules, _to_source)


def passes(graph: str, model: ModelSpec, precision: Precision) -> Sequence[GraphPass]:
    """Decompose attention over a source where no kernel supports the size of its heads."""
    if precision != "fp32" and model.head_size % MULTIPLE:
        return (PRIMITIVE_ATTENTION, Tidy())
    return ()


RECIPE = TargetRecipe(
    passes=passes,
    schemes=EngineWeightOnly.schemes,
    half_activations="fp16",
    build_engines=build_engines,
    candidates=True,
)
