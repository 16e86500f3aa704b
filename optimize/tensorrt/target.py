"""The targets of TensorRT: graphs that engines are built from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.model_spec import ModelSpec

from ..graph_pass import GraphPass
from ..precision.weight_only import EngineWeightOnly
from ..recipe import Schemes, TargetRecipe
from ..tidy import Tidy
from .attention import PRIMITIVE_ATTENTION, needs_primitives
from .engine_bundle import build_engines

BLOCK = 32
"""The number of inputs that share a scale in 4 bits."""


def passes(graph: str, model: ModelSpec, precision: Precision) -> Sequence[GraphPass]:
    """Attention over a source is decomposed where no kernel supports the size of its heads."""
    if precision != "fp32" and needs_primitives(model.head_size):
        return (PRIMITIVE_ATTENTION, Tidy())
    return ()


def schemes(precision: Precision, graphs: Collection[str], widths: Collection[int]) -> Schemes:
    """As for the neutral target, with scales that engines fuse into matrix products."""
    rows = EngineWeightOnly(8, None, error=0.05)
    products = rows if precision == "int8" else EngineWeightOnly(4, BLOCK, error=0.2)
    return Schemes(dict.fromkeys(graphs, products), rows)


RECIPE = TargetRecipe(
    passes=passes,
    schemes=schemes,
    half_activations="fp16",
    finish=build_engines,
    candidates=True,
)
