"""Directories as CTranslate2's first versions wrote them, which its present one still reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families.ctranslate2 import load_ctranslate2
from dragoman.export.families.ctranslate2.text import find_text_tokenizers
from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.tokenizers import PieceModel, TokenizerFiles
from dragoman.reference_model import CheckpointError, ModelConfig, Transformer
from dragoman.runtime.format.texts import SourceTemplate

from ...random_weights import random_transformer
from .ctranslate2_writer import described, model_file, write_text_model


def text_tokenizers(
    directory: Path, rows: Mapping[str, int] | None = None
) -> TokenizerFiles | None:
    """The tokenizers of a directory of CTranslate2."""
    config = read_json_if_present(directory / "config.json")
    return find_text_tokenizers(directory, config, rows or {})


def random_model() -> Transformer:
    """As old files imply it: eight heads, ReLU, pre-norm."""
    config = ModelConfig(
        source_vocab_size=9,
        target_vocab_size=7,
        encoder_layers=1,
        decoder_layers=2,
        d_model=16,
        num_heads=8,
        d_ff=12,
        norm_order="pre",
        positions="learned",
        max_source_positions=1024,
        max_target_positions=1024,
        tie_target_output=False,
        logits_bias=True,
    )
    return random_transformer(config, seed=2)


def write_vocabularies(directory: Path, source: list[str], target: list[str]) -> None:
    for side, tokens in (("source", source), ("target", target)):
        text = "".join(token + "\n" for token in tokens)
        (directory / f"{side}_vocabulary.txt").write_text(text, encoding="utf-8")


SOURCE = ["<blank>", "<s>", "</s>", *"abcde"]
TARGET = ["<blank>", "<s>", "</s>", *"xyz"]


def test_the_unknown_token_follows_a_vocabulary_that_lacks_it(tmp_path: Path) -> None:
    write_text_model(random_model(), tmp_path, version=2)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    write_vocabularies(tmp_path, SOURCE, TARGET)
    config = load_ctranslate2(tmp_path).config
    assert (config.source_vocab_size, config.target_vocab_size) == (9, 7)
    # One that has the token already is complete, and one that lacks two tokens is another's.
    for source, found in ((["<unk>", *SOURCE[1:]], 8), (SOURCE[:-1], 7), ([*SOURCE, "f", "g"], 10)):
        write_vocabularies(tmp_path, source, TARGET)
        message = f"encoder/embeddings_0/weight has 9 rows and its vocabulary {found} tokens"
        with pytest.raises(CheckpointError, match=message):
            load_ctranslate2(tmp_path)


def test_the_unknown_token_that_the_file_names_is_appended(tmp_path: Path) -> None:
    named = {"unk_token": torch.tensor(list(b"UNK")).char()}
    write_text_model(random_model(), tmp_path, version=5, options=named)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    write_vocabularies(tmp_path, SOURCE, TARGET)
    load_ctranslate2(tmp_path)
    write_vocabularies(tmp_path, [*SOURCE[1:], "UNK"], TARGET)
    with pytest.raises(CheckpointError, match="has 9 rows and its vocabulary 8 tokens"):
        load_ctranslate2(tmp_path)


def test_tokenizers_know_the_appended_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "dragoman.export.families.ctranslate2.text.load_sentencepiece"
    monkeypatch.setattr(module, lambda path: None)
    (tmp_path / "sentencepiece.model").touch()
    write_vocabularies(tmp_path, SOURCE, TARGET)
    files = text_tokenizers(tmp_path, {"encoder": 9, "decoder": 7})
    assert files is not None
    assert isinstance(files.source, PieceModel) and isinstance(files.target, PieceModel)
    assert (files.source.unknown, files.target.unknown) == (8, 6)
    # A model without a row for it has no such token.
    files = text_tokenizers(tmp_path, {"encoder": 8, "decoder": 6})
    assert files is not None and isinstance(files.source, PieceModel)
    assert files.source.unknown is None


@pytest.mark.parametrize("unknown", [3, ["<unk>"], None])
def test_an_unknown_token_that_is_no_text(unknown: object, tmp_path: Path) -> None:
    write_text_model(random_model(), tmp_path, unk_token=unknown)
    with pytest.raises(CheckpointError, match=r"config\.json: unk_token: expected a string"):
        load_ctranslate2(tmp_path)


def first_name(name: str) -> str:
    """The name of a variable in OpenNMT-tf."""
    if name == "encoder/embeddings_0/weight":
        return "transformer/encoder/w_embs:0"
    stack, rest = name.split("/", 1)
    attention = "multi_head" if stack == "encoder" else "masked_multi_head"
    rest = rest.replace("self_attention", attention)
    rest = re.sub(r"\battention", "multi_head", rest)
    rest = rest.replace("linear_0", "conv1d").replace("linear_", "conv1d_")
    rest = rest.replace("embeddings/weight", "w_embs").replace("projection", "dense")
    rest = rest.replace("layer_norm", "LayerNorm").replace("weight", "kernel")
    return f"transformer/{stack}/{rest}:0"


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_revision_has_the_names_of_opennmt(version: int, tmp_path: Path) -> None:
    model = random_model()
    variables = {
        first_name(name): value
        for name, value in described(model)[0].items()
        if value.dim() and "position_encodings" not in name
    }
    assert "transformer/decoder/layer_1/multi_head/conv1d_2/kernel:0" in variables
    assert "transformer/encoder/layer_0/multi_head/LayerNorm/gamma:0" in variables
    assert "transformer/decoder/dense/bias:0" in variables
    data = model_file(variables, {}, version=version, specification="", revision=1)
    (tmp_path / "model.bin").write_bytes(data)
    write_vocabularies(tmp_path, SOURCE, TARGET)
    read = load_ctranslate2(tmp_path)
    found = dict(read.named_parameters())
    for name, expected in model.named_parameters():
        if "positions" not in name:
            assert torch.equal(found[name], expected), name
    assert read.config == model.config.replace(final_norm=True)


@pytest.mark.parametrize(("bos", "eos"), [(0, 0), (0, 1), (1, 1)])
def test_special_tokens_around_sources_are_variables_of_the_file(
    bos: int, eos: int, tmp_path: Path
) -> None:
    stated = {
        "with_source_bos": torch.tensor(bos).char(),
        "with_source_eos": torch.tensor(eos).char(),
    }
    write_text_model(random_model(), tmp_path, version=5, options=stated)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    write_vocabularies(tmp_path, SOURCE, TARGET)
    tokenizers = read_checkpoint(tmp_path).tokenizers
    assert tokenizers is not None and tokenizers.pretokenized
    assert tokenizers.template == SourceTemplate((1,) * bos, (2,) * eos)
