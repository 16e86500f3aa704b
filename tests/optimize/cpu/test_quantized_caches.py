"""Caches in 8 bits: which are quantized, their scales, and the effect on attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dragoman.optimize.cpu.quantized_caches import (
    HEADROOM,
    HEADROOM_OF_RANDOM,
    QuantizedCaches,
    largest_written,
)
from dragoman.optimize.precision.calibration import calibration_batches
from dragoman.optimize.target_bundle import fused_graphs, optimize_bundle
from dragoman.optimize.targets import find_target
from dragoman.runtime import Bundle, load, read_bundle
from dragoman.runtime.format.contract import Change
from dragoman.runtime.format.manifest import PassRecord, Precision

Optimize = Callable[..., Bundle]
Array = NDArray[np.float32]
SOURCES = [[5, 9, 2, 17, 40], [7], [3, 3, 8]]


def record(bundle: Bundle) -> PassRecord:
    return next(step for step in bundle.manifest.passes if step.name == "int8-caches")


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("made_from", ["neutral", "t5", "decoder_only"])
def test_every_grouped_attention_has_them(
    precision: Precision, made_from: str, optimize: Optimize, request: pytest.FixtureRequest
) -> None:
    bundle = optimize(request.getfixturevalue(made_from), precision)
    assert (record(bundle).matches, record(bundle).refusals) == (2, ())
    decoder = bundle.manifest.graphs["decoder"]
    tensors = (*decoder.inputs, *decoder.outputs)
    caches = [t for t in tensors if t.change is Change.APPENDED]
    assert len(caches) == 8
    assert {t.dtype for t in caches} == {"int8"}
    assert "int8" not in {t.dtype for t in tensors if t.change is not Change.APPENDED}


@pytest.mark.parametrize("made_from", ["odd_heads", "encoder_only"])
def test_other_attentions_have_no_quantized_caches(
    made_from: str, optimize: Optimize, request: pytest.FixtureRequest
) -> None:
    bundle = optimize(request.getfixturevalue(made_from), "int8")
    steps = {step.name: step.matches for step in bundle.manifest.passes}
    assert steps.get("int8-caches", 0) == 0
    types = {t.dtype for graph in bundle.manifest.graphs.values() for t in graph.inputs}
    assert "int8" not in types


def test_fp32_has_none(neutral: Bundle, optimize: Optimize) -> None:
    bundle = optimize(neutral, "fp32")
    assert "int8-caches" not in {step.name for step in bundle.manifest.passes}


def test_caches_stay_in_fp32_with_the_products_that_fill_them(
    neutral: Bundle, tmp_path: Path
) -> None:
    layer = "decoder.layers.1.self_attention"
    kept = [f"{layer}.{part}" for part in ("query", "key", "value")]
    optimize_bundle(neutral, tmp_path, precision="int8", keep_fp32=kept)
    bundle = read_bundle(tmp_path)
    assert record(bundle).matches == 1
    (refusal,) = record(bundle).refusals
    assert refusal.reason == "its keys and values are computed in fp32"
    decoder = bundle.manifest.graphs["decoder"]
    types = {t.layer: t.dtype for t in decoder.inputs if t.change is Change.APPENDED}
    assert types == {0: "int8", 1: "float32"}
    assert not load(tmp_path, threads=1).generate(SOURCES)[0].error


def test_a_value_that_is_not_finite_is_refused(neutral: Bundle) -> None:
    graphs, _ = fused_graphs(neutral, find_target("cpu"), "int8", lambda stage: None)
    decoder, _ = graphs["decoder"]
    largest = largest_written(decoder, calibration_batches(neutral)["decoder"])
    infinite = {name: np.full_like(values, np.inf) for name, values in largest.items()}
    for name in ("weights", "missing"):
        found = QuantizedCaches(infinite if name == "weights" else {}, 2.0)
        model = decoder.clone()
        for node in model.graph:  # so that their products are no longer in fp32
            if node.op_type == "GroupQueryAttention" and node.inputs[0] is not None:
                value = node.inputs[0].producer()
                assert value is not None
                value.op_type = "MatMulIntegerToFloat"
        changes = found.apply(model)
        assert changes.matches == 0
        assert {r.reason for r in changes.refusals} == {
            "expected keys and values that were observed to be finite"
        }


@pytest.mark.parametrize("given", [True, False])
def test_there_is_room_for_larger_numbers_and_more_if_sources_were_random(
    given: bool, neutral: Bundle
) -> None:
    graphs, _ = fused_graphs(neutral, find_target("cpu"), "int8", lambda stage: None)
    decoder, _ = graphs["decoder"]
    observed = calibration_batches(neutral, SOURCES)["decoder"]
    if not given:
        observed = [batch._replace(random=True) for batch in observed]
    single = largest_written(decoder, [batch._replace(random=False) for batch in observed])
    found = largest_written(decoder, observed)
    ratio = 1 if given else HEADROOM_OF_RANDOM / HEADROOM
    for name, largest in single.items():
        assert largest.shape == (3 * 64,)
        np.testing.assert_allclose(found[name], largest * ratio, rtol=1e-6)


def test_teacher_forced_logits_are_those_of_decoding(neutral: Bundle, optimize: Optimize) -> None:
    """Teacher-forced and decoded logits see the same rounded keys and values."""
    with load(optimize(neutral, "int8").directory, threads=1) as model:
        for source in SOURCES:
            (result,) = model.generate([source], max_new_tokens=12)
            (score,) = model.score([(source, list(result.tokens))])
            ended = result.finish_reason == "end"  # whose probability is counted, too
            found = sum(score.token_log_probabilities[: len(result.tokens) + ended])
            assert found == pytest.approx(result.log_probability, abs=2e-4)


def test_the_scales_are_those_of_each_channel(neutral: Bundle, optimize: Optimize) -> None:
    bundle = optimize(neutral, "int8")
    graph = ir.load(bundle.graph_path("decoder")).graph
    for node in graph:
        if node.op_type == "GroupQueryAttention":
            for place in (12, 13):
                scale = node.inputs[place]
                assert scale is not None and scale.const_value is not None
                assert scale.const_value.numpy().shape == (1, 4, 1, 16)
                assert (scale.const_value.numpy() > 0).all()
            assert node.attributes["k_quant_type"].as_string() == "PER_CHANNEL"
            assert node.attributes["kv_cache_bit_width"].as_int() == 8
