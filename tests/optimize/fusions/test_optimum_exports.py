"""Optimum's exports with cache: encoder, first step, later steps, and both steps in one graph."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from dragoman.optimize.checking.samples import sample_sets
from dragoman.optimize.fusions import STANDARD_PASSES
from dragoman.optimize.pipeline import apply_passes

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

LAYERS = 2


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers: Any = importlib.import_module("transformers")
    optimum: Any = importlib.import_module("optimum.onnxruntime")
    directory = tmp_path_factory.mktemp("optimum")
    config = transformers.MarianConfig(
        vocab_size=50,
        d_model=32,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=40,
        pad_token_id=49,
        decoder_start_token_id=49,
        eos_token_id=0,
        activation_function="gelu",
    )
    transformers.set_seed(0)
    transformers.MarianMTModel(config).save_pretrained(directory / "checkpoint")
    model = optimum.ORTModelForSeq2SeqLM.from_pretrained(
        directory / "checkpoint", export=True, use_cache=True, use_merged=False
    )
    model.save_pretrained(directory / "onnx")
    return directory / "onnx"


@pytest.mark.parametrize(
    "file, attentions, norms",
    [
        ("encoder_model.onnx", LAYERS, 2 * LAYERS),
        ("decoder_model.onnx", 2 * LAYERS, 3 * LAYERS),
        ("decoder_with_past_model.onnx", 2 * LAYERS, 3 * LAYERS),
    ],
)
def test_every_operator_becomes_standard(
    exported: Path, file: str, attentions: int, norms: int
) -> None:
    model = ir.load(exported / file)
    records = apply_passes(model, STANDARD_PASSES, graph=file, samples=sample_sets(model)[0])
    found = Counter(node.op_type for node in model.graph.all_nodes())
    assert (found["Attention"], found["LayerNormalization"]) == (attentions, norms)
    assert found["Gelu"] == LAYERS
    assert not {"Softmax", "Erf", "Sqrt"} & set(found)
    assert [refusal for record in records for refusal in record.refusals] == []
    assert all(r.difference is not None and r.difference <= 1e-5 for r in records)
