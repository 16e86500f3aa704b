"""Generation settings and files beside a model of CTranslate2, which states none of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.exporter import default_max_new_tokens
from dragoman.reference_model import ConfigError, GenerationConfig, ModelConfig, Transformer

from ...random_weights import random_transformer
from .ctranslate2_writer import flag, write_text_model
from .test_ctranslate2 import SHARED, SIZES

STATED = {
    "num_beams": 3,
    "length_penalty": 0.7,
    "no_repeat_ngram_size": 2,
    "max_length": 9,
    "forced_eos_token_id": 2,
    "bad_words_ids": [[5], [6, 7]],
    "transformers_version": "5.0.0",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = random_transformer(ModelConfig.from_dict(SIZES | SHARED), seed=0)
    write_text_model(model, tmp_path)
    return tmp_path


def change(file: Path, **settings: Any) -> None:
    stated = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(stated | settings))


def generation(directory: Path) -> GenerationConfig:
    model = read_checkpoint(directory).model
    assert isinstance(model, Transformer)
    return model.generation


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_settings_are_read(name: str, directory: Path) -> None:
    change(directory / name, **STATED)
    found = generation(directory)
    assert (found.num_beams, found.length_penalty, found.no_repeat_ngram_size) == (3, 0.7, 2)
    assert (found.max_new_tokens, found.forced_last_token_id) == (8, 2)
    assert (found.suppressed_token_ids, found.bad_words) == ((5,), ((6, 7),))
    assert read_checkpoint(directory).notes == ()


def test_without_a_limit_outputs_end_as_before(directory: Path) -> None:
    """CTranslate2 has a limit of its own, and 20 tokens are Hugging Face's."""
    before = default_max_new_tokens(read_checkpoint(directory).model)
    change(directory / "generation_config.json", num_beams=2)
    read = read_checkpoint(directory)
    assert default_max_new_tokens(read.model) == before and read.notes == ()


def test_a_start_token_that_the_model_does_not_have(directory: Path) -> None:
    start = read_checkpoint(directory).model.config.start_token_id
    change(directory / "generation_config.json", decoder_start_token_id=start, num_beams=2)
    assert generation(directory).num_beams == 2
    change(directory / "generation_config.json", decoder_start_token_id=start + 1)
    with pytest.raises(ConfigError, match=r"generation_config\.json: decoder_start_token_id: exp"):
        read_checkpoint(directory)


def test_settings_that_are_refused(directory: Path) -> None:
    change(directory / "generation_config.json", max_time=2.0, num_beams="3")
    with pytest.raises(ConfigError, match=r"max_time: .* not sup.*; .*num_beams: expected"):
        read_checkpoint(directory)


def test_the_token_without_an_embedding_stays_suppressed(tmp_path: Path) -> None:
    model = random_transformer(ModelConfig.from_dict(SIZES | SHARED), seed=0)
    options = {"decoder/start_from_zero_embedding": flag(True)}
    write_text_model(model, tmp_path, options=options)
    start = read_checkpoint(tmp_path).model.config.start_token_id
    change(tmp_path / "generation_config.json", bad_words_ids=[[4]], decoder_start_token_id=start)
    assert generation(tmp_path).suppressed_token_ids == (4, start)


def test_what_is_not_read_is_a_note(directory: Path) -> None:
    (directory / "vmap.txt").write_text("a b\n")
    change(directory / "config.json", magic=1)
    setting, file = read_checkpoint(directory).notes
    assert setting == "config.json has a setting that is not known here and not read: magic"
    assert file.startswith("vmap.txt is read by --shortlist only: otherwise every token is poss")
