"""Optimizing neutral bundles for the cpu target: number of fusions, and reasons for refusals."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dragoman import DragomanError
from dragoman.optimize.cpu.attention import ATTENTION
from dragoman.optimize.cpu.layer_norm_and_gelu import BIAS_GELU
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.precision.calibration import calibrate, calibration_batches
from dragoman.optimize.precision.int8 import Int8
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Bundle, load, read_bundle
from dragoman.runtime.format.manifest import PassRecord, Precision

Optimize = Callable[..., Bundle]


def operators(bundle: Bundle, graph: str) -> Counter[str]:
    model = ir.load(bundle.graph_path(graph))
    return Counter(node.op_type for node in model.graph)


def record(bundle: Bundle, graph: str, name: str) -> PassRecord:
    return next(r for r in bundle.manifest.passes if (r.graph, r.name) == (graph, name))


def test_counts_of_the_decoder(neutral: Bundle, optimize: Optimize) -> None:
    found = operators(optimize(neutral), "decoder")
    assert found["GroupQueryAttention"] == found["MultiHeadAttention"] == 2
    assert found["InstanceNormalization"] == 6
    assert found["MatMul"] == 2 * 6
    assert found["FusedMatMul"] == 1
    assert found["ArgMax"] == 2
    gone = {"TensorScatter", "Attention", "LayerNormalization", "Transpose", "Div"}
    assert not gone & set(found)
    assert found["Expand"] == 1  # of the greedy selection
    # Of both cross-attentions, before and after; and the two shapes, once for all layers.
    assert (found["Reshape"], found["Concat"]) == (1 + 2 * 2, 2)
    assert found.total() == 85 + 2 * 2 + 7


def test_counts_of_the_encoder(neutral: Bundle, optimize: Optimize) -> None:
    bundle = optimize(neutral)
    found = operators(bundle, "encoder")
    assert found["Attention"] == 2
    assert found["InstanceNormalization"] == 4
    assert found["Expand"] == 1  # the mask, once for all layers
    assert not {"MultiHeadAttention", "LayerNormalization"} & set(found)
    assert found["Transpose"] == 4  # the cross keys and values
    assert record(bundle, "encoder", "attention").matches == 2
    assert record(bundle, "encoder", "attention").refusals == ()


def test_counts_of_recurrent_decoders(recurrent: Bundle, gated: Bundle, optimize: Optimize) -> None:
    """A unit stays one operator; cross-attention with additive scores has no fused one."""
    found = operators(optimize(recurrent), "decoder")
    assert found["Scan"] == found["MultiHeadAttention"] == 2
    assert (found["Sigmoid"], found["Sub"], found["Relu"]) == (2, 2, 2 + 2)
    assert found["MatMul"] == 2 * (2 + 2 + 2)  # of the unit, cross-attention and feed-forward
    assert not {"GroupQueryAttention", "TensorScatter", "LayerNormalization"} & set(found)
    other = operators(optimize(gated), "decoder")
    assert other["GRU"] == other["Softmax"] == 2
    assert not {"Scan", "MultiHeadAttention", "LayerNormalization"} & set(other)
    for counts in (found, other):
        assert counts["InstanceNormalization"] == 6
        assert (counts["FusedMatMul"], counts["ArgMax"]) == (1, 2)
    quantized = operators(optimize(recurrent, "int8"), "decoder")
    assert (quantized["MatMulIntegerToFloat"], quantized["QGemm"]) == (found["MatMul"], 1)


def test_heads_that_the_kernel_does_not_support_are_refused(
    odd_heads: Bundle, optimize: Optimize
) -> None:
    bundle = optimize(odd_heads)
    refused = record(bundle, "decoder", "cached-self-attention")
    assert refused.matches == 0
    assert [r.operator for r in refused.refusals] == ["Attention", "Attention"]
    assert all("multiple of 8" in r.reason and "found 12" in r.reason for r in refused.refusals)
    found = operators(bundle, "decoder")
    assert found["Attention"] == found["TensorScatter"] / 2 == 2
    assert found["MultiHeadAttention"] == 2


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("made_from", ["neutral", "odd_heads"])
def test_every_pass_is_recorded_with_its_difference(
    precision: Precision, made_from: str, optimize: Optimize, request: pytest.FixtureRequest
) -> None:
    bundle = optimize(request.getfixturevalue(made_from), precision)
    records = bundle.manifest.passes
    assert (bundle.manifest.target, bundle.manifest.precision) == ("cpu", precision)
    assert {r.graph for r in records} == {"encoder", "decoder"}
    for step in records:
        assert step.difference is not None
        assert step.difference <= step.tolerance
        assert step.nodes_before >= 0 < step.nodes_after
        if step.matches == 0:
            assert step.difference == 0
    for before, after in itertools.pairwise(records):
        assert before.graph != after.graph or before.nodes_after == after.nodes_before
    assert sum(r.difference or 0 for r in records if r.name.startswith("weights")) > 0 or (
        precision == "fp32"
    )


def test_tokens_are_those_of_the_neutral_bundle(
    neutral: Bundle, odd_heads: Bundle, optimize: Optimize
) -> None:
    sources = [[5], [7, 8, 2099], [3] * 20, [9, 1, 4, 1, 5, 9, 2], [6, 6], [8, 3, 5], [2] * 11]
    for bundle in (neutral, odd_heads):
        expected = load(bundle.directory, threads=1).generate(sources)
        found = load(optimize(bundle).directory, threads=1).generate(sources)
        assert [r.tokens for r in found] == [r.tokens for r in expected]
        assert [r.finish_reason for r in found] == [r.finish_reason for r in expected]


@pytest.mark.parametrize("precision, bits", [("fp32", 32), ("int8", 8), ("int4", 4)])
def test_weights_are_stored_once_at_their_precision(
    neutral: Bundle, optimize: Optimize, precision: Precision, bits: int
) -> None:
    weights = optimize(neutral, precision).path("weights.bin").stat().st_size
    table = 2100 * 64
    encoder = 2 * (4 * 64 * 64 + 2 * 64 * 96)
    decoder = 2 * (8 * 64 * 64 + 2 * 64 * 96)
    products = (table + decoder) * bits / 8 + encoder * min(4, max(bits, 8) / 8)
    # Scales, in 4 bits one per 32 weights; biases, gains and positions in fp32.
    scales = 0 if bits == 32 else 4 * (table + decoder) / (32 if bits == 4 else 64)
    assert products <= weights <= 1.02 * (products + scales) + 4 * 64 * (20 + 16 + 140)


def test_embeddings_and_vocabulary_share_one_table(neutral: Bundle, optimize: Optimize) -> None:
    for precision in ("int8", "int4"):
        bundle = optimize(neutral, precision)
        for graph in ("encoder", "decoder"):
            model = ir.load(bundle.graph_path(graph))
            names = [name for name in model.graph.initializers if ".tokens.weight" in name]
            assert sorted(names) == [
                f"encoder.embedding.tokens.weight.{precision}",
                "encoder.embedding.tokens.weight.scale",
            ]


def test_bundles_that_are_not_neutral_are_refused(
    neutral: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    with pytest.raises(DragomanError, match="expected a neutral bundle in fp32, found target cpu"):
        optimize_bundle(optimize(neutral), tmp_path)
    with pytest.raises(DragomanError, match="expected precision fp32, int8, int4, found bf16"):
        optimize_bundle(neutral, tmp_path, precision="bf16")
    assert list(tmp_path.iterdir()) == []


def test_a_fusion_with_too_few_matches_fails(neutral: Bundle, tmp_path: Path) -> None:
    spec = dataclasses.replace(neutral.manifest.model, decoder_layers=3)
    manifest = dataclasses.replace(neutral.manifest, model=spec)
    with pytest.raises(
        DragomanError, match="pass cached-self-attention is meant for 3 places, found 2"
    ):
        optimize_bundle(Bundle(neutral.directory, manifest), tmp_path)


def test_padding_is_masked_for_any_score() -> None:
    """Models trained to attend sharply have scores far above 10,000."""
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[b,q,8] x, float[b,2,s,4] k, '
        "float[b,2,s,4] v, bool[b,s] mask) => (float[b,q,8] y) <int64[4] heads = {0,0,2,4}, "
        "int64[3] whole = {0,0,8}, int64[2] axes = {1,2}, int64[4] wide = {1,1,3,1}> "
        "{ h = Reshape(x, heads) p = Transpose<perm=[0,2,1,3]>(h) m = Unsqueeze(mask, axes) "
        "e = Expand(m, wide) a = Attention(p, k, v, e) t = Transpose<perm=[0,2,1,3]>(a) "
        "y = Reshape(t, whole) }"
    )
    values = {v.name: v for node in model.graph for v in node.outputs}
    values["h"].shape = ir.Shape(["b", "q", 2, 4])
    values["m"].shape = values["e"].shape = ir.Shape(["b", 1, 1, "s"])
    random = np.random.default_rng(0).standard_normal
    samples = {
        "x": random((2, 3, 8)).astype(np.float32) * 400,
        "k": random((2, 2, 5, 4)).astype(np.float32) * 400,
        "v": random((2, 2, 5, 4)).astype(np.float32),
        "mask": np.arange(5) < np.array([[2], [5]]),
    }
    (record,) = apply_passes(model, [ATTENTION], graph="g", samples=samples)
    assert (record.matches, record.refusals) == (1, ())
    assert record.difference is not None
    assert record.difference < 1e-5


def gelu(approximate: str) -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[b,3,7] x) => (float[b,3,7] y) '
        "<float[7] bias = {0.5,2.0,1.0,0.5,1.0,-3.0,0.1}> "
        f'{{ h = Add(x, bias) y = Gelu<approximate="{approximate}">(h) }}'
    )


@pytest.mark.parametrize("approximate, operator", [("none", "BiasGelu"), ("tanh", "FastGelu")])
def test_bias_and_gelu_become_one_operator(approximate: str, operator: str) -> None:
    model = gelu(approximate)
    samples = {"x": np.random.default_rng(0).standard_normal((2, 3, 7)).astype(np.float32)}
    (record,) = apply_passes(model, [BIAS_GELU], graph="g", samples=samples)
    assert (record.matches, record.refusals) == (1, ())
    assert [node.op_type for node in model.graph] == [operator]


def test_a_gelu_without_a_constant_bias_is_refused() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[b,3] x, float[b,3] z) => '
        "(float[b,3] y) { h = Add(x, z) y = Gelu(h) }"
    )
    (record,) = apply_passes(model, [BIAS_GELU], graph="g", samples=None)
    assert record.matches == 0
    assert [(r.operator, r.matched) for r in record.refusals] == [("Gelu", True)]
    assert "bias that is an initializer" in record.refusals[0].reason


@pytest.mark.parametrize("precision, biases", [("fp32", 0), ("int8", 2)])
def test_where_a_product_adds_the_bias_itself_gelu_is_by_itself(
    precision: Precision, biases: int, optimize: Optimize, odd_heads: Bundle
) -> None:
    bundle = optimize(odd_heads, precision)
    found = operators(bundle, "encoder")
    assert (found["Gelu"], found["BiasGelu"]) == (biases, 2 - biases)


def test_an_embedding_with_too_large_a_rounding_error_stays_in_fp32(
    neutral: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Int8, "error", 1e-4)
    optimize_bundle(neutral, tmp_path, precision="int8")
    bundle = read_bundle(tmp_path)
    for graph, lookups in (("encoder", 1), ("decoder", 1)):
        refusals = record(bundle, graph, "weights-int8").refusals
        assert [r.operator for r in refusals].count("Gather") == lookups
        assert all("expected an error of at most 0.0001, found" in r.reason for r in refusals)
        weights = ir.load(bundle.path(f"{graph}.onnx")).graph.initializers
        assert weights["encoder.embedding.tokens.weight"].dtype == ir.DataType.FLOAT
    assert not load(tmp_path, threads=1).generate([[3, 4]])[0].error


def test_calibration_without_sources_is_refused(neutral: Bundle, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="calibration: expected at least one source"):
        optimize_bundle(neutral, tmp_path, precision="int8", calibration=[])
    assert list(tmp_path.iterdir()) == []


def test_many_sources_are_subsampled(neutral: Bundle) -> None:
    observed = calibration_batches(neutral, [[5, 6]] * 700)
    assert sum(len(batch.rows) for batch in observed["encoder"]) == 512


def test_padding_is_not_observed(neutral: Bundle) -> None:
    """A source counts the same alone and in a batch with a longer one."""
    model = ir.load(neutral.path("encoder.onnx"))
    alone = calibrate(model, calibration_batches(neutral, [[5, 6], [7, 8]])["encoder"])
    padded = calibrate(model, calibration_batches(neutral, [[5, 6], [7, 8], [9] * 20])["encoder"])
    long = calibrate(model, calibration_batches(neutral, [[9] * 20])["encoder"])
    for name, inputs in padded.inputs.items():
        one, other = alone.inputs[name].moments, long.inputs[name].moments
        assert inputs.moments is not None and one is not None and other is not None
        np.testing.assert_allclose(inputs.moments, one + other, rtol=1e-3, atol=1e-3)
