"""Marian: tensors and greedy tokens are those of Hugging Face's implementation."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.benchmarks.models.random_checkpoint import write_random_text_model
from dragoman.errors import DragomanError
from dragoman.export.families import FAMILIES
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.export.families.marian import DEFAULTS, position_table
from dragoman.reference_model import greedy_uncached, pad

from .comparing import assert_same_tensors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
transformers: Any = importlib.import_module("transformers")

STEPS = 20
SIZES: dict[str, Any] = {
    "vocab_size": 53,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "scale_embedding": True,
    "activation_function": "swish",
    "pad_token_id": 52,
    "decoder_start_token_id": 52,
    "eos_token_id": 0,
    "forced_eos_token_id": None,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "as-published": {},
    "relu": {"activation_function": "relu"},
    "gelu-unscaled": {"activation_function": "gelu", "scale_embedding": False},
    "two-vocabularies": {
        "share_encoder_decoder_embeddings": False,
        "vocab_size": 61,
        "decoder_vocab_size": 53,
    },
}
SOURCES = [[7, 3, 9, 0], [5, 0], [41, 12, 12, 30, 8, 2, 19, 0], [0], [11, 50, 23, 4, 17, 0]]


def their_model(options: dict[str, Any], directory: Path) -> Any:
    """Save one of their models, with random weights that make its greedy output vary."""
    torch.manual_seed(3)
    model = transformers.MarianMTModel(transformers.MarianConfig(**SIZES | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Sharp attention and gains of both signs; otherwise the output repeats one token.
            if "embed_positions" in name:
                continue
            if parameter.dim() == 1:
                parameter.normal_(std=1.0 if name.endswith("norm.weight") else 0.1)
            else:
                parameter.normal_(std=0.6 if "q_proj" in name or "k_proj" in name else 0.2)
        model.final_logits_bias.normal_(std=0.1)
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_tensors_are_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = their_model(options, tmp_path), load_hugging_face(tmp_path)
    target = torch.randint(0, 53, (len(SOURCES), 9), generator=torch.manual_seed(1))
    # In float64: the rounding of either in float32 depends on the processor.
    assert_same_tensors(theirs.double(), ours.double(), SOURCES, target)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_greedy_tokens_are_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = their_model(options, tmp_path), load_hugging_face(tmp_path)
    source, mask = pad(SOURCES, 52)
    generated = theirs.generate(
        input_ids=source,
        attention_mask=mask.long(),
        num_beams=1,
        do_sample=False,
        max_new_tokens=STEPS,
    )
    rows = [row[1:] for row in generated.tolist()]
    expected = [row[: row.index(0) + 1] if 0 in row else row for row in rows]
    assert len({tuple(row) for row in expected}) > 1
    assert greedy_uncached(ours, SOURCES, STEPS) == expected


def test_positions_are_theirs() -> None:
    for width in (32, 33):
        options = {"d_model": width, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
        model = transformers.MarianMTModel(transformers.MarianConfig(**SIZES | options))
        table = model.model.encoder.embed_positions.weight
        torch.testing.assert_close(position_table(40, width), table.detach(), rtol=0, atol=1e-6)


def test_all_names_of_a_tied_weight_may_be_stored(tmp_path: Path) -> None:
    their_model({}, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    names = ["model.shared.weight", "lm_head.weight", "model.decoder.embed_tokens.weight"]
    tied = next(weights.pop(name) for name in names if name in weights)
    for kept in (names, names[:1], names[1:2]):
        save_file(weights | {n: tied.clone() for n in kept}, tmp_path / "model.safetensors")
        assert torch.equal(load_hugging_face(tmp_path).output.weight, tied)
    save_file(
        weights | {names[0]: tied, names[1]: tied + 1},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(DragomanError, match=r"shared\.weight and lm_head\.weight must be equal"):
        load_hugging_face(tmp_path)


def test_all_problems_are_one_error(tmp_path: Path) -> None:
    their_model({}, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.encoder.layers.0.fc1.bias"]
    weights["model.decoder.layers.1.fc2.bias"] = torch.zeros(7)
    weights["model.decoder.layers.0.fc2.bias"] = torch.full((32,), torch.nan)
    weights["model.extra"] = torch.zeros(1)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(DragomanError) as caught:
        load_hugging_face(tmp_path)
    for problem in (
        "missing weight model.encoder.layers.0.fc1.bias",
        "model.decoder.layers.1.fc2.bias must have shape [32], found [7]",
        "model.decoder.layers.0.fc2.bias has 32 of 32 values that are NaN",
        "unknown weight model.extra",
    ):
        assert problem in str(caught.value)


def test_defaults_are_theirs() -> None:
    theirs = transformers.MarianConfig()
    assert {name: getattr(theirs, name) for name in DEFAULTS} == DEFAULTS


def test_other_configurations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"config\.json: expected a file, found none"):
        load_hugging_face(tmp_path)
    with pytest.raises(DragomanError) as caught:
        FAMILIES["marian"].config(
            SIZES | {"decoder_ffn_dim": 7, "activation_function": "x", "d_model": 0}
        )
    for problem in ("found 48 and 7", "found 'x'", "d_model"):
        assert problem in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"model_type": "llama"}))
    with pytest.raises(DragomanError, match=r"expected one of albert, .*marian.*, found 'llama'"):
        load_hugging_face(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"model_type": "marian"}))
    with pytest.raises(DragomanError, match=r"expected model\.safetensors"):
        load_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("shape", "theirs"), [("tiny", "MarianMTModel"), ("bart-tiny", "BartForConditionalGeneration")]
)
def test_random_models_are_of_theirs(tmp_path: Path, shape: str, theirs: str) -> None:
    """Their library reads the benchmark's models without complaint, and gives the same tokens."""
    write_random_text_model(shape, tmp_path, vocab_size=200)
    model, info = getattr(transformers, theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    sources = torch.randint(1, 199, (4, 12), generator=torch.manual_seed(1))
    generated = model.eval().generate(
        input_ids=sources,
        attention_mask=torch.ones_like(sources),
        num_beams=1,
        do_sample=False,
        min_new_tokens=STEPS,
        max_new_tokens=STEPS,
    )
    rows = [row[1:] for row in generated.tolist()]
    assert greedy_uncached(load_hugging_face(tmp_path), sources.tolist(), STEPS) == rows
    assert len({tuple(row) for row in rows}) == 4
    assert all(len(set(row)) > 3 for row in rows)
    write_random_text_model(shape, tmp_path / "again", vocab_size=200)
    first, again = (path / "model.safetensors" for path in (tmp_path, tmp_path / "again"))
    assert first.read_bytes() == again.read_bytes()
