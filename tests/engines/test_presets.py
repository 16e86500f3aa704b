"""Every preset, a T5 and the shipped model become TensorRT-RTX engines, in every precision, for
one and two profiles, and attention is fused in all of them. Minutes of work: `make test-engines`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.benchmarks.models.random_checkpoint import random_model
from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES, default_source_range
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.reference_model import Transformer, load_checkpoint, preset
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision, Profile, TensorRTEngines

pytestmark = pytest.mark.engines

MODELS = ("tiny", "t5", "base", "big", "g2p-en")
T5: dict[str, Any] = {
    "positions": "relative",
    "norm_order": "pre",
    "norm": "rms",
    "norm_bias": False,
    "gated_feed_forward": True,
    "activation": "gelu_tanh",
    "tie_source_target": True,
    "scale_embedding": False,
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
VOCABULARY = 8000
NewDirectory = Callable[[str], Path]


@pytest.fixture(scope="module")
def new_directory(tmp_path_factory: pytest.TempPathFactory) -> NewDirectory:
    return tmp_path_factory.mktemp


@pytest.fixture(scope="module", params=MODELS)
def neutral(request: pytest.FixtureRequest, new_directory: NewDirectory) -> Bundle:
    name: str = request.param
    directory = new_directory(name)
    export_bundle(_model(name), directory, name=name)
    return read_bundle(directory)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_engines(neutral: Bundle, precision: Precision, tmp_path: Path) -> None:
    model, layers = neutral.manifest.model, neutral.manifest.architecture
    latency, throughput = NAMED_BATCHES["latency"], NAMED_BATCHES["throughput"]
    graphs, source = tmp_path / "graphs", default_source_range(model)
    graphs.mkdir()
    optimize_bundle(neutral, graphs, target="tensorrt-rtx", precision=precision)
    for batches in ((latency,), (latency, throughput)):
        directory = tmp_path / f"{len(batches)} profiles"
        directory.mkdir()
        profiles = tuple(Profile(batch, source) for batch in batches)
        capacity = min(64, model.max_target_positions)
        bundle, warnings = build_engines(
            read_bundle(graphs), directory, EngineOptions(profiles, capacity)
        )
        engines = bundle.manifest.executable
        assert isinstance(engines, TensorRTEngines)
        encoder, decoder = engines.reports["encoder"], engines.reports["decoder"]
        expected = 2 * layers["decoder_layers"] * len(profiles)
        assert decoder.fused is not None and encoder.fused is not None
        if precision == "fp32":
            # Rows that may share a source have several queries together, a single row has one.
            several = [batch for batch in batches if batch.largest > 1]
            assert sum(decoder.fused.values()) == expected - layers["decoder_layers"] * len(several)
            found = [warning.partition(":")[0] for warning in warnings]
            assert found == ["encoder", *["decoder"] * len(several)]
        else:
            assert sum(decoder.fused.values()) == expected
            assert sum(encoder.fused.values()) == layers["encoder_layers"] * len(profiles)
            # Of a gated feed-forward in int8 one weight in each layer is written out in fp16.
            gated = layers["gated_feed_forward"] and precision == "int8"
            assert gated or warnings == ()
            assert all("dequantized by a separate kernel" in warning for warning in warnings)


def _model(name: str) -> Transformer:
    if name == "g2p-en":
        shipped = load_checkpoint(find_checkpoint(name))
        assert isinstance(shipped, Transformer)
        return shipped
    changes = T5 if name == "t5" else {}
    size = "tiny" if name == "t5" else name
    config = preset(size, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, **changes)
    # What is tested are kernels; sharper attention brings fp16 near the limit of its rounding.
    return random_model(config, seed=1, sharpness=2.0)
