"""Real engines of an encoder-only and of a decoder-only model: 2 layers, heads of 16."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman.optimize.tensorrt.engine_bundle import build_engines, pinned_bundle
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision, Range, TensorRTEngines

from ..conftest import Optimize

LAYERS = 2
REQUEST = EngineRequest(tuple(NAMED_BATCHES.values()))
WEIGHTS: dict[Precision, str] = {"fp32": "float32", "fp16": "float16", "int8": "int8"}

precisions = pytest.mark.parametrize("precision", list(WEIGHTS))


def built(
    graphs: Bundle, directory: Path, request: EngineRequest = REQUEST
) -> tuple[Bundle, TensorRTEngines, tuple[str, ...]]:
    """With warnings; the bundle is the one that is read again."""
    manifest = graphs.manifest
    options = request.for_model(manifest.model, manifest.default_max_new_tokens)
    made, warnings = build_engines(graphs, directory, options)
    bundle = read_bundle(directory)
    assert bundle == made
    engines = bundle.manifest.executable
    assert isinstance(engines, TensorRTEngines)
    assert engines.capacity == options.capacity
    return bundle, engines, warnings


def shapes(bundle: Bundle, graph: str) -> dict[str, tuple[int | str, ...]]:
    spec = bundle.manifest.graphs[graph]
    return {str(tensor.slot): tensor.shape for tensor in (*spec.inputs, *spec.outputs)}


@precisions
def test_an_encoder_only_model(
    precision: Precision, encoder_only: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    """Of int8, a profile for one row allows two: see `engine_bundle`."""
    graphs = optimize(encoder_only, precision, "tensorrt-rtx")
    bundle, engines, warnings = built(graphs, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.engine", "manifest.json"]
    assert (bundle.manifest.kind, bundle.manifest.precision) == ("encoder", precision)
    rows = Range(1, 1, 2) if precision == "int8" else Range(1, 1, 1)
    assert [profile.batch for profile in engines.profiles] == [rows, Range(1, 32, 32)]
    assert {profile.source for profile in engines.profiles} == {Range(1, 21, 21)}
    assert (engines.capacity, bundle.manifest.default_max_new_tokens) == (0, 0)
    tokens = ("source_batch", "source")
    assert shapes(bundle, "encoder") == {
        "source": tokens,
        "source_mask": tokens,
        "token_type": tokens,
        "class_logits": ("source_batch", 3),
    }
    assert bundle.manifest.passes == graphs.manifest.passes  # there is no shape to pin
    report = engines.reports["encoder"]
    assert [*engines.reports] == ["encoder"]
    assert report.attentions == LAYERS
    assert WEIGHTS[precision] in report.weights and report.dequantizations == 0
    assert report.fused == ({} if precision == "fp32" else {"_gemm_mha_v2": 2 * LAYERS})
    unfused = [warning.partition(" attentions")[0] for warning in warnings]
    assert unfused == (["encoder: 4 of 4"] if precision == "fp32" else [])


@precisions
def test_a_decoder_only_model(
    precision: Precision, decoder_only: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    graphs = optimize(decoder_only, precision, "tensorrt-rtx")
    bundle, engines, warnings = built(graphs, tmp_path)
    names = ["candidates.engine", "decoder.engine", "manifest.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert bundle.manifest.kind == "language-model"
    assert engines.capacity == 17
    assert [profile.batch.best for profile in engines.profiles] == [1, 32]
    assert {profile.source for profile in engines.profiles} == {Range(1, 1, 1)}
    cache = ("batch", 4, 17, 16)
    caches = {
        f"{time}_{part}_{layer}": cache
        for time in ("past", "present")
        for part in ("key", "value")
        for layer in range(LAYERS)
    }
    assert shapes(bundle, "decoder") == caches | {
        "token": ("batch", 1),
        "position": ("batch",),
        "read": ("batch", 1),
        "logits": ("batch", 1, 210),
        "next_token": ("batch",),
        "next_log_probability": ("batch",),
    }
    decoder = engines.reports["decoder"]
    assert [*engines.reports] == ["decoder", "candidates"]
    assert decoder.attentions == LAYERS
    assert decoder.fused == {"_gemv_mha_v1": 2 * LAYERS}  # one query: one kernel in any format
    assert decoder.layers["kv_cache_update"] == 2 * LAYERS
    assert WEIGHTS[precision] in decoder.weights and decoder.dequantizations == 0
    assert engines.reports["candidates"].layers["topk"] == 1
    assert warnings == ()


def test_a_decoder_only_model_of_fewer_positions(
    decoder_only: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    """New tokens by default are as many as there is room for."""
    graphs = optimize(decoder_only, "fp16", "tensorrt-rtx")
    pinned = pinned_bundle(graphs, tmp_path, 9)
    assert shapes(pinned, "decoder")["past_key_1"] == ("batch", 4, 9, 16)
    assert shapes(pinned, "decoder")["logits"] == ("batch", 1, 210)
    assert shapes(pinned, "candidates")["logits"] == ("batch", 1, 210)
    assert pinned.manifest.default_max_new_tokens == 9
    assert [(record.name, record.graph) for record in pinned.manifest.passes][-1] == (
        "pin-shapes",
        "decoder",
    )
    names = {value.name for value in ir.load(pinned.graph_path("decoder")).graph.inputs}
    assert {"token", "position", "read"} <= names


def test_nothing_of_an_encoder_only_model_is_pinned(
    encoder_only: Bundle, optimize: Optimize, tmp_path: Path
) -> None:
    graphs = optimize(encoder_only, "fp16", "tensorrt-rtx")
    pinned = pinned_bundle(graphs, tmp_path, 0)
    assert pinned.manifest.graphs == graphs.manifest.graphs
    assert pinned.manifest.passes == graphs.manifest.passes
