"""The operators of both graphs, pinned: one Attention an attention, one TensorScatter a cache.

A new release of the exporter that changes these counts is to be looked at, then written down here.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from dragoman.export.exporter import ExportedGraph

ENCODER = {
    "Attention": 2,  # a layer each
    "MatMul": 16,  # 6 a layer, and keys and values of 2 decoder layers
    "Add": 21,
    "LayerNormalization": 4,
    "Relu": 2,
    "Gather": 2,
    "Mul": 1,
    "Reshape": 12,
    "Transpose": 12,
    "Concat": 3,
    "Expand": 1,
    "Range": 1,
    "Shape": 2,
    "Squeeze": 1,
    "Unsqueeze": 1,
}
DECODER = {
    "Attention": 4,  # two a layer
    "TensorScatter": 4,  # two a layer
    "MatMul": 17,  # 8 a layer, and the logits
    "Add": 24,
    "LayerNormalization": 6,
    "Relu": 2,
    "Gather": 3,
    "Reshape": 12 + 1,
    "Transpose": 13,
    "Expand": 1,
    "LessOrEqual": 1,
    "Range": 2,
    # One more each, two more Squeeze: queries of all rows of a source, once for all layers.
    "Concat": 3 + 1,
    "Div": 1,
    "Mul": 1 + 1,
    "Shape": 4 + 1,
    "Squeeze": 2 + 2 + 1,
    "Unsqueeze": 5 + 1,
    "LogSoftmax": 1,
    "ArgMax": 1,
    "GatherElements": 1,
}


def counts(exported: ExportedGraph) -> Counter[str]:
    return Counter(node.op_type for node in exported.model.graph.all_nodes())


def named(exported: ExportedGraph, op_type: str) -> list[ir.Node]:
    return [node for node in exported.model.graph if node.op_type == op_type]


def test_the_encoders_operators(encoder: ExportedGraph) -> None:
    assert counts(encoder) == ENCODER


def test_the_decoders_operators(decoder: ExportedGraph) -> None:
    assert counts(decoder) == DECODER


def test_attention_takes_query_key_value_and_mask_only(
    encoder: ExportedGraph, decoder: ExportedGraph
) -> None:
    for exported in (encoder, decoder):
        for node in named(exported, "Attention"):
            assert len(node.inputs) == 4 and None not in node.inputs
            assert len(node.outputs) == 1
            assert not node.attributes
            mask = node.inputs[3]
            assert mask is not None and mask.dtype == ir.DataType.BOOL


def test_caches_are_written_along_their_third_axis(decoder: ExportedGraph) -> None:
    graph = decoder.model.graph
    scatters = named(decoder, "TensorScatter")
    for node in scatters:
        assert {name: a.value for name, a in node.attributes.items()} == {
            "axis": 2,
            "mode": "linear",
        }
        assert node.inputs[2] is graph.inputs[1]  # position
    pasts = [node.inputs[0] for node in scatters]
    presents = [node.outputs[0] for node in scatters]
    assert sorted(str(v.name) for v in pasts if v is not None) == [
        f"past_{part}_{layer}" for part in ("key", "value") for layer in (0, 1)
    ]
    assert {str(v.name) for v in presents} == {str(v.name) for v in graph.outputs[3:]}


def test_a_cache_is_read_after_it_is_written_only(decoder: ExportedGraph) -> None:
    """Else a runtime could not bind both to one address."""
    for value in decoder.model.graph.inputs:
        if str(value.name).startswith("past_"):
            readers = {usage.node.op_type for usage in value.uses()}
            assert readers <= {"TensorScatter", "Shape"}
            assert sum(usage.node.op_type == "TensorScatter" for usage in value.uses()) == 1


def test_one_transpose_is_left_of_those_of_linear_layers(decoder: ExportedGraph) -> None:
    """That of the tied embedding, which is also gathered from."""
    initializers = decoder.model.graph.initializers.values()
    transposed = [
        node.inputs[0] for node in named(decoder, "Transpose") if node.inputs[0] in initializers
    ]
    assert [value.name for value in transposed if value is not None] == [
        "decoder.embedding.tokens.weight"
    ]
