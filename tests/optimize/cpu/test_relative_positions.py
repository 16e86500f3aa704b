"""T5 on the cpu target: fused completely, with its position bias computed once per graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx_ir as ir
import pytest

from dragoman.runtime import Bundle, load
from dragoman.runtime.format.manifest import Precision

Optimize = Callable[..., Bundle]
SOURCES = [[5], [7, 8, 2099], [3] * 20, [9, 1, 4, 1, 5, 9, 2], [6, 6], [8, 3, 5], [2] * 11]


def graph(bundle: Bundle, name: str) -> ir.Graph:
    return ir.load(bundle.graph_path(name)).graph


def operators(nodes: ir.Graph) -> Counter[str]:
    return Counter(node.op_type for node in nodes)


def bias_of(nodes: ir.Graph, operator: str, index: int) -> ir.Value:
    """The bias that all attentions of a graph share."""
    (bias,) = {n.inputs[index] for n in nodes if n.op_type == operator and len(n.inputs) > index}
    assert bias is not None
    return bias


def axes(value: ir.Value) -> list[object]:
    assert value.shape is not None
    return [d if isinstance(d, int) else d.value for d in value.shape]


def test_neutral_graphs_compute_one_bias_and_expand_none(t5: Bundle) -> None:
    encoder, decoder = graph(t5, "encoder"), graph(t5, "decoder")
    masks = {node.inputs[3] for node in encoder if node.op_type == "Attention"}
    assert [axes(mask) for mask in masks if mask] == [["source_batch", 4, "source", "source"]]
    masks = {
        node.inputs[3]
        for node in decoder
        if node.op_type == "Attention" and node.inputs[1] and not node.inputs[1].is_graph_input()
    }
    # Only the rows of the queries, which is one row per step.
    assert [axes(mask) for mask in masks if mask] == [["batch", 4, "query", "capacity"]]
    found = operators(encoder)
    assert found["Where"] == found["Clip"] == 1 and found["Expand"] == 0
    assert found["RMSNormalization"] == 5 and found["Attention"] == 2
    assert found["Transpose"] == 1 + 2 * 4 + 4
    assert found.total() == 74
    found = operators(decoder)
    assert found["Where"] == found["Clip"] == 1
    assert found["Expand"] == 2  # the mask of cross-attention, the greedy selection
    assert found["RMSNormalization"] == 7 and found["Attention"] == 4
    assert found.total() == 100 + 11 + 7  # the number of queries of all rows of a source


def test_counts_of_the_encoder(t5: Bundle, optimize: Optimize) -> None:
    nodes = graph(optimize(t5), "encoder")
    found = operators(nodes)
    assert found["MultiHeadAttention"] == 2
    assert not {"Attention", "Where", "Expand"} & set(found)
    assert found["RMSNormalization"] == 5
    assert found["Clip"] == 1
    assert found["Transpose"] == 1 + 4  # the bias; the cross keys and values
    assert axes(bias_of(nodes, "MultiHeadAttention", 5))[:2] == [1, 4]  # not of each row
    assert found.total() == 55


def test_counts_of_the_decoder(t5: Bundle, optimize: Optimize) -> None:
    nodes = graph(optimize(t5), "decoder")
    found = operators(nodes)
    assert found["GroupQueryAttention"] == found["MultiHeadAttention"] == 2
    assert found["RMSNormalization"] == 7
    assert found["Clip"] == found["Transpose"] == 1
    assert not {"Attention", "Where", "TensorScatter", "LessOrEqual"} & set(found)
    assert found["Expand"] == 1  # of the greedy selection
    assert found["MatMul"] == 2 * 7  # packed; the gate makes one more
    bias_of(nodes, "GroupQueryAttention", 10)
    # Of both cross-attentions, before and after; and the two shapes, once for all layers.
    assert found["Reshape"] == 1 + 2 * 2
    assert found.total() == 68 + 2 * 2 + 7
    # No value has the cache's capacity, so the time of a step does not depend on it.
    caches = [value for value in nodes.inputs if (value.name or "").startswith("past_")]
    users = {usage.node.op_type for cache in caches for usage in cache.uses()}
    assert users == {"GroupQueryAttention"}


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_passes_fuse_everything_or_give_reasons(
    t5: Bundle, optimize: Optimize, precision: Precision
) -> None:
    bundle = optimize(t5, precision)
    for step in bundle.manifest.passes:
        assert step.difference is not None and step.difference <= step.tolerance
        reasons = {refusal.reason for refusal in step.refusals}
        # A gate has no bias to fuse.
        assert not reasons or (step.name == "bias-gelu" and len(step.refusals) == 2), step
    results = load(bundle.directory, threads=1).generate(SOURCES)
    assert all(result.error is None for result in results)


def test_tokens_are_those_of_the_neutral_bundle(t5: Bundle, optimize: Optimize) -> None:
    expected = load(t5.directory, threads=1).generate(SOURCES)
    found = load(optimize(t5).directory, threads=1).generate(SOURCES)
    assert [r.tokens for r in found] == [r.tokens for r in expected]
    assert len({r.tokens[:3] for r in found}) > 3
