"""Recurrent decoders become TensorRT-RTX engines, without loops, in every precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.benchmarks.models.random_checkpoint import random_model
from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES, default_source_range
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.reference_model import preset
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision, Profile, TensorRTEngines

pytestmark = pytest.mark.engines

LOOPS = {"recurrence", "iterator", "trip_limit", "loop_output"}


@pytest.fixture(scope="module", params=["ssru", "gru"])
def neutral(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The shape of Marian's students, with few tokens."""
    directory = tmp_path_factory.mktemp("recurrent")
    sizes = {"encoder_layers": 3, "decoder_layers": 2, "d_model": 256, "num_heads": 8, "d_ff": 1536}
    vocabularies = {"source_vocab_size": 1000, "target_vocab_size": 1000}
    config = preset("tiny", **vocabularies, **sizes, decoder_kind=request.param)
    export_bundle(random_model(config, seed=1, sharpness=2.0), directory, name="student")
    return read_bundle(directory)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "int4"])
def test_engines(neutral: Bundle, precision: Precision, tmp_path: Path) -> None:
    graphs, directory = tmp_path / "graphs", tmp_path / "engines"
    graphs.mkdir()
    directory.mkdir()
    optimize_bundle(neutral, graphs, target="tensorrt-rtx", precision=precision)
    source = default_source_range(neutral.manifest.model)
    profiles = tuple(Profile(batch, source) for batch in NAMED_BATCHES.values())
    bundle, _ = build_engines(read_bundle(graphs), directory, EngineOptions(profiles, 64))
    engines = bundle.manifest.executable
    assert isinstance(engines, TensorRTEngines)
    decoder = engines.reports["decoder"]
    assert not LOOPS & decoder.layers.keys()
    assert decoder.attentions == 2 and decoder.fused is not None
    # Rows that may share a source have several queries together, which have no kernel in fp32.
    kernels = 2 if precision == "fp32" else 4
    assert sum(decoder.fused.values()) == kernels
