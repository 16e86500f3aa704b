"""A Whisper model becomes TensorRT-RTX engines, whose sources all have one length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.export import export_bundle
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES, default_source_range
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision, Profile, Range, TensorRTEngines

from ..speech_models import POSITIONS, save, whisper

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def neutral(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    directory = tmp_path_factory.mktemp("whisper")
    heads: dict[str, Any] = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    theirs = whisper(multilingual=True, d_model=64, max_target_positions=448, **heads)
    checkpoint = save(theirs, directory / "checkpoint")
    (directory / "neutral").mkdir()
    export_bundle(load_hugging_face(checkpoint), directory / "neutral", name="whisper")
    return read_bundle(directory / "neutral")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_engines(neutral: Bundle, precision: Precision, tmp_path: Path) -> None:
    model, layers = neutral.manifest.model, neutral.manifest.architecture
    source = default_source_range(model)
    assert source == Range(POSITIONS, POSITIONS, POSITIONS)
    graphs, directory = tmp_path / "graphs", tmp_path / "engines"
    graphs.mkdir()
    directory.mkdir()
    optimize_bundle(neutral, graphs, target="tensorrt-rtx", precision=precision)
    profiles = tuple(Profile(batch, source) for batch in NAMED_BATCHES.values())
    bundle, _ = build_engines(read_bundle(graphs), directory, EngineOptions(profiles, 64))
    engines = bundle.manifest.executable
    assert isinstance(engines, TensorRTEngines)
    encoder, decoder = engines.reports["encoder"], engines.reports["decoder"]
    assert decoder.fused is not None
    # In fp32 several queries have no fused kernel: those of rows that may share a source.
    fused = {"fp16": 2 * len(profiles), "fp32": 2 * len(profiles) - 1}[precision]
    assert sum(decoder.fused.values()) == fused * layers["decoder_layers"]
    expected = layers["encoder_layers"] * len(profiles)
    if precision == "fp16":
        assert encoder.fused is not None
        assert sum(encoder.fused.values()) == expected
