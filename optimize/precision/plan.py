"""The precision passes of each graph of a bundle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from dragoman.runtime.format.contract import ROLES
from dragoman.runtime.format.manifest import Precision

from ..graph_pass import GraphPass
from ..graph_values import floats
from ..targets import Graphs, TargetRecipe
from .calibration import CalibrationBatch, calibrate
from .half import Half, largest_magnitudes
from .products import embedding_tables, embedding_widths, tied_product_input
from .weights import (
    QUANTIZATION_TOLERANCE,
    QuantizeWeights,
    RoundedWeight,
    RoundedWeights,
    round_for,
)

HALF: dict[Precision, tuple[ir.DataType, float]] = {
    "fp16": (ir.DataType.FLOAT16, 0.05),
    "bf16": (ir.DataType.BFLOAT16, 0.4),
}
"""Number formats, and the largest difference that each may cause in an output.

The difference is relative to the output's largest value. Overflow causes a larger difference.
Untrained models with sharp attention differ by 0.016 in fp16. Parity decides about quality."""


def precision_passes(
    graphs: Graphs,
    recipe: TargetRecipe,
    precision: Precision,
    observed: Mapping[str, Sequence[CalibrationBatch]],
    kept: Collection[str] = (),
) -> dict[str, tuple[GraphPass, ...]]:
    """Return the precision passes of each graph.

    Args:
        observed: recorded inputs of each graph; see `calibration.calibration_batches`
        kept: names of weights that int8 and int4 leave in fp32
    """
    if precision in HALF:
        return {name: (half,) for name, half in _half(graphs, precision, observed).items()}
    quantization = weight_passes(graphs, recipe, precision, observed, kept)
    if recipe.half_activations is None:
        caches = cache_passes(graphs, recipe, observed)
        return {name: (step, *caches.get(name, ())) for name, step in quantization.items()}
    activations = _half(graphs, recipe.half_activations, observed)
    return {name: (quantization[name], activations[name]) for name in graphs}


def _half(
    graphs: Graphs, precision: Precision, observed: Mapping[str, Sequence[CalibrationBatch]]
) -> dict[str, Half]:
    dtype, tolerance = HALF[precision]
    passes = {}
    for name, (model, spec) in graphs.items():
        # The host writes features and reads probabilities, in float32, as are states.
        kept = {role for role, known in ROLES.items() if known.dtype == "float32"} | {"source"}
        in_fp32 = {t.name for t in (*spec.inputs, *spec.outputs) if t.role in kept}
        largest = largest_magnitudes(model, [batch.samples for batch in observed[name]])
        passes[name] = Half(dtype, largest, frozenset(in_fp32), tolerance)
    return passes


def cache_passes(
    graphs: Graphs, recipe: TargetRecipe, observed: Mapping[str, Sequence[CalibrationBatch]]
) -> dict[str, tuple[GraphPass, ...]]:
    """Return the passes with which int8 and int4 quantize caches, after weights."""
    if recipe.caches is None or "decoder" not in graphs:
        return {}
    return {"decoder": (recipe.caches(graphs["decoder"][0], observed["decoder"]),)}


def weight_passes(
    graphs: Graphs,
    recipe: TargetRecipe,
    precision: Precision,
    observed: Mapping[str, Sequence[CalibrationBatch]],
    kept: Collection[str] = (),
) -> dict[str, QuantizeWeights]:
    """Return the passes with which int8 and int4 quantize the weights of each graph.

    Embeddings are rounded once for all graphs, to suit the product that they are tied to.
    """
    schemes = recipe.schemes(precision, graphs, embedding_widths(graphs))
    known = {name: calibrate(model, observed[name]) for name, (model, _) in graphs.items()}
    # The graph whose product may be tied to an embedding: the logits'.
    last = "decoder" if "decoder" in graphs else "encoder"
    tables: dict[str, RoundedWeight] = {}
    for name, value in embedding_tables(graphs).items():
        x = tied_product_input(graphs[last][0], name)
        tables[name] = round_for(floats(value).T, x, schemes.embedding, known[last])
    return {
        name: QuantizeWeights(
            RoundedWeights(schemes.products[name], known[name]),
            schemes.embedding,
            tables,
            QUANTIZATION_TOLERANCE,
            frozenset(kept),
        )
        for name in graphs
    }
