"""The target cpu: ONNX Runtime's own operators that are fastest on a CPU."""

from collections.abc import Collection, Mapping, Sequence

from dragoman.runtime.format.manifest import PassRecord, Precision
from dragoman.runtime.format.model_spec import ModelSpec

from ..fusions.cleanup import Tidy
from ..graph_pass import GraphPass, PassError
from ..precision.blocks import BlockQuantized
from ..precision.int8 import Int8
from ..precision.weights import QUANTIZATION_TOLERANCE
from ..targets import Schemes, TargetRecipe
from .attention import ATTENTION, FOREIGN_ATTENTION
from .fixed_source import FIXED_SOURCE
from .layer_norm_and_gelu import BIAS_GELU, LAYER_NORM
from .projections import BILINEAR_SCORES, PACKED_PROJECTIONS, QUERY_SCALE, TIED_OUTPUT
from .quantized_caches import QuantizedCaches, largest_written
from .self_attention import SELF_ATTENTION

BLOCK = 32
"""The number of inputs that share a scale in 4 bits."""

FUSIONS: tuple[GraphPass, ...] = (
    BILINEAR_SCORES,
    SELF_ATTENTION,
    ATTENTION,
    PACKED_PROJECTIONS,
    QUERY_SCALE,
    FIXED_SOURCE,
    LAYER_NORM,
    BIAS_GELU,
    Tidy(),
)
FP32: tuple[GraphPass, ...] = (TIED_OUTPUT,)
"""The passes that follow if weights stay in fp32."""


def passes(graph: str, model: ModelSpec, precision: Precision) -> Sequence[GraphPass]:
    """Return the passes of a graph; if weights are quantized, products take the bias of GELU."""
    if precision == "fp32":
        return (*FUSIONS, *FP32)
    return tuple(p for p in FUSIONS if p is not BIAS_GELU)


def schemes(precision: Precision, graphs: Collection[str], widths: Collection[int]) -> Schemes:
    """Return the schemes of int8 or int4.

    With int4, the encoder's products are int8, because 8 bits are faster for many tokens at once,
    and more accurate: the cosine of MiniLM's embeddings with the trained model's is 0.99 instead of
    0.97.
    """
    int8, blocks = Int8(), BlockQuantized(4, BLOCK, error=0.2)
    if precision == "int8":
        return Schemes(dict.fromkeys(graphs, int8), int8)
    divisible = all(width % BLOCK == 0 for width in widths)
    products = {graph: int8 if graph == "encoder" else blocks for graph in graphs}
    return Schemes(products, blocks if divisible else int8)


def check_counts(
    records: Mapping[str, Sequence[PassRecord]], attentions: Mapping[str, int], model: ModelSpec
) -> None:
    """Check that every pattern of the exporter is fused or refused for a stated reason."""
    expectations: list[tuple[str, GraphPass, int, int]] = []
    if "decoder" in records:
        cached = _record(records["decoder"], SELF_ATTENTION)
        others = attentions["decoder"] - cached.matches
        expectations += [
            ("decoder", SELF_ATTENTION, 0 if model.state_size else model.decoder_layers, 0),
            # Refused cached attentions are candidates again, and match no form of this pass.
            ("decoder", ATTENTION, others, len(cached.refusals)),
            ("decoder", PACKED_PROJECTIONS, cached.matches, 0),
        ]
    if "encoder" in records:
        expectations.append(("encoder", ATTENTION, attentions["encoder"], 0))
    for graph, step, expected, excused in expectations:
        record = _record(records[graph], step)
        known = record.matches + sum(refusal.matched for refusal in record.refusals) + excused
        if known != expected:
            reasons = "; ".join(sorted({r.reason for r in record.refusals})) or "none refused"
            raise PassError(
                f"{graph}: pass {step.name} is meant for {expected} places, found {known}: "
                f"{reasons}"
            )


def _record(records: Sequence[PassRecord], step: GraphPass) -> PassRecord:
    return next(record for record in records if record.name == step.name)


RECIPE = TargetRecipe(
    passes=passes,
    schemes=schemes,
    caches=lambda decoder, observed: QuantizedCaches(
        largest_written(decoder, observed), QUANTIZATION_TOLERANCE
    ),
    check=check_counts,
    file_passes=tuple(
        FOREIGN_ATTENTION if step is ATTENTION else step for step in (*FUSIONS, *FP32)
    ),
)
