"""Whisper in CTranslate2's format: weights, suppressed tokens and special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families.ctranslate2 import load_ctranslate2, whisper
from dragoman.export.families.ctranslate2.whisper import whisper_tokens
from dragoman.reference_model import CheckpointError, ModelConfig, Transformer

from ...random_weights import random_transformer
from .ctranslate2_writer import described, quantized, write_whisper_model

WORDS = [f"w{i}" for i in range(20)]
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|haw|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nocaptions|>",
    "<|notimestamps|>",
    "<|0.00|>",
    "<|0.02|>",
]
TOKENS = WORDS + SPECIAL
SUPPRESSED: dict[str, Any] = {
    "suppress_ids": [3, 1, 7],
    "suppress_ids_begin": [2, 20],
    "lang_ids": [22, 23],
    "alignment_heads": [[0, 0]],
}


@pytest.fixture
def model() -> Transformer:
    config = ModelConfig(
        source_vocab_size=None,
        target_vocab_size=len(TOKENS),
        feature_size=5,
        encoder_layers=1,
        decoder_layers=2,
        d_model=24,
        num_heads=3,
        d_ff=40,
        norm_order="pre",
        activation="gelu",
        key_bias=False,
        scale_embedding=False,
        positions="learned",
        max_source_positions=9,
        max_target_positions=13,
    )
    return random_transformer(config, seed=0)


@pytest.mark.parametrize("numbers", ["float32", "float16", "int8"])
def test_is_read_as_it_was_stored(model: Transformer, numbers: str, tmp_path: Path) -> None:
    write_whisper_model(model, tmp_path, TOKENS, numbers=numbers, **SUPPRESSED)
    read = load_ctranslate2(tmp_path)
    tokens = {"start_token_id": 21, "end_token_id": 20, "pad_token_id": 20}
    expected = model.config.replace(final_norm=True, dropout=read.config.dropout, **tokens)
    assert read.config == expected
    assert read.generation.suppressed_token_ids == (1, 3, 7)
    assert read.generation.first_suppressed_token_ids == (2, 20)
    assert read.generation.prompt == (29,)  # no timestamps
    stored = quantized(described(model)[0], numbers)
    for name, found in described(read)[0].items():
        value = stored[name].float()
        if (scale := stored.get(f"{name}_scale")) is not None:
            value = value / scale.reshape(-1, *[1] * (value.dim() - 1))
        assert torch.equal(found.float(), value), name


def test_without_suppress_ids_nothing_is_suppressed(model: Transformer, tmp_path: Path) -> None:
    write_whisper_model(model, tmp_path, TOKENS, numbers="float32", suppress_ids=None)
    assert load_ctranslate2(tmp_path).generation.is_plain


def test_alignment_heads_that_there_are_not_are_a_note(model: Transformer, tmp_path: Path) -> None:
    """As faster-whisper's distilled models list those of their teacher."""
    heads = [[0, 2], [25, 0]]
    write_whisper_model(model, tmp_path, TOKENS, numbers="float32", alignment_heads=heads)
    read = read_checkpoint(tmp_path)
    assert isinstance(read.model, Transformer)
    assert read.model.generation.alignment_heads == ()
    assert [note.partition(":")[0] for note in read.notes] == ["alignment_heads"]


def test_alignment_heads_of_another_form(model: Transformer, tmp_path: Path) -> None:
    write_whisper_model(model, tmp_path, TOKENS, numbers="float32", alignment_heads=[[0, "1"]])
    with pytest.raises(CheckpointError, match="alignment_heads: expected pairs of layer and head"):
        load_ctranslate2(tmp_path)


@pytest.mark.parametrize("ids", [[99], ["1"], [-1], [True], 5])
def test_suppressed_tokens_must_be_tokens(model: Transformer, ids: Any, tmp_path: Path) -> None:
    write_whisper_model(model, tmp_path, TOKENS, numbers="float32", suppress_ids=ids)
    with pytest.raises(CheckpointError, match=r"suppress_ids: expected token ids in \[0, 32\)"):
        load_ctranslate2(tmp_path)


def test_special_tokens(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whisper_model(model, tmp_path, TOKENS, numbers="float32")
    english = whisper_tokens(tmp_path)
    assert (english.languages, english.transcribe, english.translate) == ({}, None, None)
    monkeypatch.setattr(whisper, "MULTILINGUAL_VOCAB_SIZE", len(TOKENS))
    tokens = whisper_tokens(tmp_path)
    assert (tokens.end, tokens.start, tokens.translate, tokens.transcribe) == (20, 21, 24, 25)
    assert dict(tokens.languages) == {"en": 22, "haw": 23}
    assert (tokens.no_timestamps, tokens.first_timestamp) == (29, 30)


def test_the_vocabulary_must_have_them(model: Transformer, tmp_path: Path) -> None:
    tokens = [token.replace("<|notimestamps|>", "x") for token in TOKENS]
    write_whisper_model(model, tmp_path, tokens, numbers="float32")
    with pytest.raises(CheckpointError, match="notimestamps"):
        load_ctranslate2(tmp_path)
    (tmp_path / "vocabulary.json").unlink()
    with pytest.raises(CheckpointError, match=r"vocabulary\.json or vocabulary\.txt"):
        load_ctranslate2(tmp_path)


def test_generation_settings_beside_the_model(model: Transformer, tmp_path: Path) -> None:
    """What they do not state is what the model and its vocabulary imply."""
    write_whisper_model(model, tmp_path, TOKENS, numbers="float32", **SUPPRESSED)
    before = load_ctranslate2(tmp_path).generation
    settings = {"return_timestamps": True, "max_length": 4, "no_repeat_ngram_size": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    found = load_ctranslate2(tmp_path).generation
    assert before.speech is not None and found.speech is not None
    assert found.speech.default_timestamps and not before.speech.default_timestamps
    assert (found.max_new_tokens, found.no_repeat_ngram_size) == (4, 3)
    assert (found.prompt, found.alignment_heads) == (before.prompt, before.alignment_heads)
    assert found.suppressed_token_ids == before.suppressed_token_ids == (1, 3, 7)
    assert found.first_suppressed_token_ids == before.first_suppressed_token_ids
