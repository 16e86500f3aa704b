"""A BERT with a head and a GPT-2, of random weights, become TensorRT-RTX engines in every
precision, in which attention is fused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision, Profile, Range, TensorRTEngines

pytestmark = pytest.mark.engines

transformers: Any = importlib.import_module("transformers")

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
LAYERS, VOCABULARY, POSITIONS = 3, 2100, 77
Make = Callable[[str], Bundle]


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=320,
        max_position_embeddings=POSITIONS,
        num_labels=5,
    )
    return transformers.BertForSequenceClassification(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=128,
        n_layer=LAYERS,
        n_head=4,
        n_positions=POSITIONS,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


@pytest.fixture(scope="module")
def neutral(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Made once for each process, which has all tests of a model."""
    bundles: dict[str, Bundle] = {}

    def make(name: str) -> Bundle:
        if name not in bundles:
            torch.manual_seed(0)
            checkpoint, directory = tmp_path_factory.mktemp(name), tmp_path_factory.mktemp(name)
            theirs = {"bert": bert, "gpt2": gpt2}[name]()
            theirs.save_pretrained(checkpoint)
            (checkpoint / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
            export_bundle(read_checkpoint(checkpoint).model, directory, name=name)
            bundles[name] = read_bundle(directory)
        return bundles[name]

    return make


def built(
    neutral: Bundle, precision: Precision, directory: Path
) -> tuple[Bundle, TensorRTEngines, tuple[str, ...]]:
    """With one row and with many at once."""
    graphs, engines = directory / "graphs", directory / "engines"
    graphs.mkdir()
    engines.mkdir()
    optimize_bundle(neutral, graphs, target="tensorrt-rtx", precision=precision)
    manifest = neutral.manifest
    request = EngineRequest(tuple(NAMED_BATCHES.values()))
    options = request.for_model(manifest.model, manifest.default_max_new_tokens)
    bundle, warnings = build_engines(read_bundle(graphs), engines, options)
    found = bundle.manifest.executable
    assert isinstance(found, TensorRTEngines)
    one = Range(1, 1, 2) if precision in ("int8", "int4") else Range(1, 1, 1)
    assert found.profiles == (
        Profile(one, options.profiles[0].source),
        Profile(Range(1, 32, 32), options.profiles[0].source),
    )
    return bundle, found, warnings


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bert(precision: Precision, neutral: Make, tmp_path: Path) -> None:
    bundle, engines, warnings = built(neutral("bert"), precision, tmp_path)
    assert engines.profiles[0].source == Range(1, 32, POSITIONS)
    spec, report = bundle.manifest.graphs["encoder"], engines.reports["encoder"]
    assert [tensor.role for tensor in spec.inputs] == ["source", "source_mask", "token_type"]
    assert [tensor.shape for tensor in spec.outputs] == [("source_batch", 5)]
    assert report.attentions == LAYERS and report.fused is not None
    if precision == "fp32":  # has no kernel for several queries
        assert len(warnings) == 1 and report.fused == {}
    else:
        assert sum(report.fused.values()) == 2 * LAYERS and warnings == ()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gpt2(precision: Precision, neutral: Make, tmp_path: Path) -> None:
    bundle, engines, warnings = built(neutral("gpt2"), precision, tmp_path)
    assert engines.profiles[0].source == Range(1, 1, 1)
    assert engines.capacity == POSITIONS
    spec, report = bundle.manifest.graphs["decoder"], engines.reports["decoder"]
    assert spec.input("token").shape == spec.input("read").shape == ("batch", 1)
    assert spec.input("past_key").shape == ("batch", 4, POSITIONS, 32)
    assert spec.output("logits").shape == ("batch", 1, VOCABULARY)
    assert report.layers["kv_cache_update"] == 2 * LAYERS
    assert report.attentions == LAYERS and report.fused is not None
    assert sum(report.fused.values()) == 2 * LAYERS and warnings == ()
