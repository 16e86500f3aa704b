"""Engines of a random model (2 layers a stack, heads of 16), and the graphs that they need."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.optional_graphs import candidates_graph, candidates_spec
from dragoman.optimize.running import difference, run, samples_for_graph
from dragoman.optimize.tensorrt.builder import build_engine
from dragoman.optimize.tensorrt.engine_bundle import build_engines, pinned_bundle
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.manifest import (
    EngineReport,
    Precision,
    Profile,
    Range,
    TensorRTEngines,
)

from ..conftest import Optimize
from .conftest import SOURCE

LAYERS = 2
WEIGHTS: dict[Precision, str] = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "int8",
    "int4": "int4",
}


def engines_of(bundle: Bundle) -> TensorRTEngines:
    engines = bundle.manifest.executable
    assert isinstance(engines, TensorRTEngines)
    return engines


def reports(bundle: Bundle) -> tuple[EngineReport, EngineReport]:
    """Return the reports of encoder and decoder."""
    found = engines_of(bundle).reports
    assert [*found] == ["encoder", "decoder", "candidates"]
    assert found["candidates"].layers["topk"] == 1
    assert [*found["candidates"].weights] == ["int64"]  # two numbers
    return found["encoder"], found["decoder"]


SLOWER = [pytest.param(p, marks=pytest.mark.engines) for p in ("fp32", "bf16", "int4")]


@pytest.mark.parametrize("precision", ["fp16", "int8", *SLOWER])
def test_every_precision_becomes_engines(
    neutral: Bundle,
    optimize: Optimize,
    tmp_path: Path,
    precision: Precision,
    one_profile: EngineOptions,
) -> None:
    graphs = optimize(neutral, precision, "tensorrt-rtx")
    bundle, warnings = build_engines(graphs, tmp_path, one_profile)
    assert bundle == read_bundle(tmp_path)
    encoder, decoder = reports(bundle)
    assert (bundle.manifest.target, bundle.manifest.precision) == ("tensorrt-rtx", precision)
    # Self-attention of each decoder layer has one query: one kernel in any format. Attention over a
    # source has several, those of all rows of the source.
    of_source = {} if precision == "fp32" else {"_gemm_mha_v2": LAYERS}
    assert decoder.attentions == 2 * LAYERS
    assert decoder.fused == {"_gemv_mha_v1": LAYERS} | of_source
    assert encoder.attentions == LAYERS
    assert encoder.fused == of_source
    if precision == "fp32":
        unfused = [warning.partition(" attentions")[0] for warning in warnings]
        assert unfused == ["encoder: 2 of 2", "decoder: 2 of 4"]
    else:
        assert warnings == ()
    assert decoder.dequantizations == encoder.dequantizations == 0
    assert WEIGHTS[precision] in decoder.weights
    assert decoder.layers["kv_cache_update"] == 2 * LAYERS


def test_each_profile_has_its_own_kernels(
    neutral: Bundle, optimize: Optimize, tmp_path: Path, two_profiles: EngineOptions
) -> None:
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    bundle, warnings = build_engines(graphs, tmp_path, two_profiles)
    encoder, decoder = reports(bundle)
    assert engines_of(bundle).profiles == two_profiles.profiles
    # A single row has a source of its own, and one query.
    assert decoder.fused == {"_gemv_mha_v1": 3 * LAYERS, "_gemm_mha_v2": LAYERS}
    assert encoder.fused == {"_gemm_mha_v2": 2 * LAYERS}
    assert warnings == ()


def test_a_bundle_of_engines_holds_no_graphs(
    odd_heads: Bundle, optimize: Optimize, tmp_path: Path, one_profile: EngineOptions
) -> None:
    graphs = optimize(odd_heads, "fp16", "tensorrt-rtx")
    build_engines(graphs, tmp_path, one_profile)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "candidates.engine",
        "decoder.engine",
        "encoder.engine",
        "manifest.json",
    ]
    manifest = read_bundle(tmp_path).manifest
    shapes = {
        t.role: t.shape
        for t in (*manifest.graphs["decoder"].inputs, *manifest.graphs["decoder"].outputs)
    }
    assert shapes["token"] == ("batch", 1)
    assert shapes["past_key"] == ("batch", 3, 9, 12)
    assert shapes["cross_key"] == ("source_batch", 3, "source", 12)
    assert manifest.default_max_new_tokens == 9
    assert [r.name for r in manifest.passes][-1] == "pin-shapes"


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_single_row_reads_integer_weights_directly(
    neutral: Bundle, optimize: Optimize, tmp_path: Path, precision: Precision
) -> None:
    """Weights that matrix products read as integers are not dequantized by separate kernels."""
    graphs = optimize(neutral, precision, "tensorrt-rtx")
    latency = EngineOptions((Profile(Range(1, 1, 1), SOURCE),), capacity=9)
    bundle, warnings = build_engines(graphs, tmp_path, latency)
    _, decoder = reports(bundle)
    assert decoder.dequantizations == 0
    (profile,) = engines_of(bundle).profiles
    assert profile.batch == Range(1, 1, 2)
    assert warnings == ()


@pytest.mark.parametrize("precision", [pytest.param("fp16", marks=pytest.mark.engines), "int8"])
def test_heads_without_a_fused_kernel(
    odd_heads: Bundle,
    optimize: Optimize,
    tmp_path: Path,
    precision: Precision,
    one_profile: EngineOptions,
) -> None:
    graphs = optimize(odd_heads, precision, "tensorrt-rtx")
    written = [r for r in graphs.manifest.passes if r.name == "primitive-attention"]
    found = [(r.graph, r.matches, r.refusals) for r in written]
    assert found == [("encoder", LAYERS, ()), ("decoder", LAYERS, ())]
    bundle, warnings = build_engines(graphs, tmp_path, one_profile)
    encoder, decoder = reports(bundle)
    assert (encoder.attentions, decoder.attentions) == (0, LAYERS)
    assert decoder.fused == {"_gemm_mha_v2": LAYERS}
    assert warnings == ()


def test_candidates_without_more_suppressed_tokens_than_topk_selects(
    rtx: Package, tmp_path: Path, one_profile: EngineOptions
) -> None:
    """TensorRT's TopK selects at most 3,840; the parser and the builder take the masked graph."""
    logits = TensorSpec("logits", "logits", "float16", ("batch", 1, 9000))
    never = range(2000, 7000)
    spec = candidates_spec(GraphSpec("decoder.onnx", (), (logits,)), never)
    ir.save(candidates_graph(spec, never), tmp_path / spec.file)
    engine = build_engine(rtx, tmp_path / spec.file, spec, one_profile)
    assert engine.report.layers["topk"] == engine.report.layers["select"] == 1
    assert engine.warnings == ()


def test_engines_cannot_be_built_from_engines(
    neutral: Bundle, optimize: Optimize, tmp_path: Path, one_profile: EngineOptions
) -> None:
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    build_engines(graphs, first, one_profile)
    with pytest.raises(DragomanError, match="expected graphs, found engines"):
        build_engines(read_bundle(first), second, one_profile)
    assert list(second.iterdir()) == []


class Reported:
    """Progress that is remembered: each stage, and what was done of it."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, list[int]]] = []

    def stage(self, description: str) -> None:
        self.stages.append((description, []))

    def advance(self, done: int, total: int) -> None:
        assert total == 100
        self.stages[-1][1].append(done)


def test_progress_names_each_phase_once_in_a_row(
    neutral: Bundle, optimize: Optimize, tmp_path: Path, one_profile: EngineOptions
) -> None:
    reported = Reported()
    graphs = optimize(neutral, "fp16", "tensorrt-rtx")
    build_engines(graphs, tmp_path, one_profile, progress=reported)
    names = [name for name, _ in reported.stages]
    assert all(before != after for before, after in itertools.pairwise(names))
    for graph in ("encoder", "decoder"):
        phases = [
            done for name, done in reported.stages if name.startswith(f"engine of the {graph}: ")
        ]
        assert phases and all(0 <= share <= 100 for done in phases for share in done)


def test_a_pinned_decoder_computes_the_same(neutral: Bundle, tmp_path: Path) -> None:
    pinned = pinned_bundle(neutral, tmp_path, capacity=11)
    samples = samples_for_graph(pinned.manifest.graphs["decoder"], neutral.manifest.model, seed=3)
    before, after = (
        run(ir.load(b.path(b.manifest.graphs["decoder"].file)), samples) for b in (neutral, pinned)
    )
    assert before.keys() == after.keys()
    assert difference(before, after)[1] < 1e-6


def test_only_rows_and_sources_stay_dynamic(neutral: Bundle, tmp_path: Path) -> None:
    pinned = pinned_bundle(neutral, tmp_path, capacity=11)
    decoder = ir.load(pinned.path(pinned.manifest.graphs["decoder"].file))
    open_axes = {
        str(d.value)
        for value in (*decoder.graph.inputs, *decoder.graph.outputs)
        for d in value.shape or ()
        if not isinstance(d, int)
    }
    assert open_axes == {"batch", "source_batch", "source"}


def test_pinning_removes_nodes(neutral: Bundle, optimize: Optimize, tmp_path: Path) -> None:
    pinned = pinned_bundle(optimize(neutral, "fp16", "tensorrt-rtx"), tmp_path, capacity=11)
    record = pinned.manifest.passes[-1]
    assert (record.name, record.graph) == ("pin-shapes", "decoder")
    assert record.nodes_after < record.nodes_before
    assert record.difference == 0.0
