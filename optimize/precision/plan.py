"""Which precision passes each graph of a bundle gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from dragoman.runtime.format.manifest import TENSORRT_TARGETS, GraphSpec, Precision, Target

from ..graph_pass import GraphPass
from ..graph_values import floats, users
from ..graph_values import is_weight as weight
from .blocks import BlockQuantized
from .calibration import calibrate
from .half import Half
from .int8 import Int8
from .observed import Observed
from .ranges import largest_magnitudes
from .rounding import Rounded
from .weight_only import EngineWeightOnly, WeightOnly
from .weights import QuantizeWeights, Scheme, round_for

BLOCK = 32
"""Inputs that share a scale in 4 bits."""

QUANTIZATION_TOLERANCE = 2.0
"""What quantization may change in an output, relative to its largest value: as far apart as two
outputs of that size can be, so that beyond it something grew out of bounds. Untrained models reach
1. Each product is held to its scheme's `error`; whether the quality of the whole is good enough is
for parity to say, on the model's own task."""

HALF: dict[Precision, tuple[ir.DataType, float]] = {
    "fp16": (ir.DataType.FLOAT16, 0.05),
    "bf16": (ir.DataType.BFLOAT16, 0.4),
}
"""Number formats, and what rounding every single result to them may change in an output, relative
to its largest value: an overflow changes more. Untrained models with sharp attention lose 0.016 in
fp16. As above, quality is for parity to say."""

Graphs = Mapping[str, tuple[ir.Model, GraphSpec]]


def precision_passes(
    graphs: Graphs,
    target: Target,
    precision: Precision,
    observed: Mapping[str, Sequence[Observed]],
) -> dict[str, tuple[GraphPass, ...]]:
    """The passes of encoder and decoder.

    Args:
        graphs: after the target's fusions
        observed: inputs of each graph, to measure on; see `observed.observe`
    """
    if precision in HALF:
        return {name: (half,) for name, half in _half(graphs, precision, observed).items()}
    quantization = _quantization(graphs, schemes(target, precision, graphs), observed)
    if target not in TENSORRT_TARGETS:
        return {name: (step,) for name, step in quantization.items()}
    activations = _half(graphs, "fp16", observed)
    return {name: (quantization[name], activations[name]) for name in graphs}


class Schemes(NamedTuple):
    encoder: Scheme
    decoder: Scheme
    embedding: Scheme


def schemes(target: Target, precision: Precision, graphs: Graphs) -> Schemes:
    """How products and tables are quantized.

    On a processor int4's encoder is int8: it sees many tokens at once, where 8 bits are faster than
    4. Standard operators have no table of 4 bits.
    """
    if target == "cpu":
        int8, blocks = Int8(), BlockQuantized(4, BLOCK, error=0.2)
        if precision == "int8":
            return Schemes(int8, int8, int8)
        widths = {_width(table) for table in _tables(graphs).values()}
        divisible = all(width % BLOCK == 0 for width in widths)
        return Schemes(int8, blocks, blocks if divisible else int8)
    kind = EngineWeightOnly if target in TENSORRT_TARGETS else WeightOnly
    rows = kind(8, None, error=0.05)
    products = rows if precision == "int8" else kind(4, BLOCK, error=0.2)
    return Schemes(products, products, rows)


def _half(
    graphs: Graphs, precision: Precision, observed: Mapping[str, Sequence[Observed]]
) -> dict[str, Half]:
    dtype, tolerance = HALF[precision]
    passes = {}
    for name, (model, spec) in graphs.items():
        # What the host reads and writes: features as they are made, and probabilities.
        tensors = (*spec.inputs, *spec.outputs)
        in_fp32 = {t.name for t in tensors if t.role in ("source", "next_log_probability")}
        largest = largest_magnitudes(model, [batch.samples for batch in observed[name]])
        passes[name] = Half(dtype, largest, frozenset(in_fp32), tolerance)
    return passes


def _quantization(
    graphs: Graphs, scheme: Schemes, observed: Mapping[str, Sequence[Observed]]
) -> dict[str, QuantizeWeights]:
    """Tables are rounded once for both graphs, by what the product that they are tied to needs."""
    known = {name: calibrate(model, observed[name]) for name, (model, _) in graphs.items()}
    decoder, _ = graphs["decoder"]
    tables: dict[str, tuple[Rounded, float]] = {}
    for name, value in _tables(graphs).items():
        x = _tied_input(decoder, name)
        tables[name] = round_for(floats(value).T, x, scheme.embedding, known["decoder"])
    return {
        name: QuantizeWeights(
            getattr(scheme, name), scheme.embedding, tables, known[name], QUANTIZATION_TOLERANCE
        )
        for name in graphs
    }


def _tables(graphs: Graphs) -> dict[str, ir.Value]:
    """The embeddings that token ids are looked up in, by name."""
    tables: dict[str, ir.Value] = {}
    for model, spec in graphs.values():
        ids = {t.name for t in spec.inputs if t.role in ("source", "token")}
        for node in model.graph:
            if node.op_type == "Gather" and node.inputs[1] is not None:
                table = node.inputs[0]
                if node.inputs[1].name in ids and table is not None and weight(table, 2):
                    tables.setdefault(table.name or "", table)
    return tables


def _width(table: ir.Value) -> int:
    assert table.shape is not None and isinstance(table.shape[1], int)
    return table.shape[1]


def _tied_input(decoder: ir.Model, table: str) -> ir.Value | None:
    """What the table is multiplied by where it is the projection to logits too."""
    value = decoder.graph.initializers.get(table)
    for node in [] if value is None else users(value):
        if node.op_type == "Transpose":
            return users(node.outputs[0])[0].inputs[0]
    return None
