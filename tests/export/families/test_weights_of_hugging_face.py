"""Weights that Hugging Face stores otherwise than most checkpoints do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import CheckpointError, Transformer, greedy_uncached

from .comparing import assert_same_tensors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
transformers: Any = importlib.import_module("transformers")

SHAPE: dict[str, Any] = {
    "vocab_size": 31,
    "d_model": 12,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
}
SOURCES = [[7, 3, 9, 2], [5], [11, 12, 12, 30, 8, 2, 19]]
TARGET = torch.randint(3, 31, (len(SOURCES), 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def checkpoint(tmp_path: Path, varied: Callable[..., Any]) -> Callable[..., tuple[Any, Path]]:
    def save(**fields: Any) -> tuple[Any, Path]:
        config = transformers.BartConfig(**SHAPE | fields)
        theirs = varied(transformers.BartForConditionalGeneration(config))
        theirs.generation_config.max_length = 20
        theirs.save_pretrained(tmp_path)
        return theirs, tmp_path

    return save


@pytest.mark.parametrize("extra", [1, 8])
def test_weights_that_are_not_needed_are_left_out(
    extra: int, checkpoint: Callable[..., tuple[Any, Path]]
) -> None:
    theirs, directory = checkpoint()
    file = directory / "model.safetensors"
    names = ["lm_head.bias", "classification_head.dense.weight", *(f"old.{i}" for i in range(9))]
    weights = load_file(file) | {name: torch.ones(3) for name in names[:extra]}
    save_file(weights, file, metadata={"format": "pt"})
    read = read_checkpoint(directory)
    assert isinstance(read.model, Transformer)
    assert_same_tensors(theirs, read.model, SOURCES, TARGET)
    if extra == 1:
        assert read.notes == ("1 weight that the model does not need left out: lm_head.bias",)
    else:
        assert read.notes == (
            "8 weights that the model does not need left out: classification_head.dense.weight, "
            "lm_head.bias, old.0, old.1, old.2, ...",
        )


def test_names_of_weights_cannot_write_to_the_terminal(
    checkpoint: Callable[..., tuple[Any, Path]],
) -> None:
    _, directory = checkpoint()
    file = directory / "model.safetensors"
    weights = load_file(file) | {"a\n\x1b[31mb" + "c" * 200: torch.ones(3)}
    save_file(weights, file, metadata={"format": "pt"})
    assert read_checkpoint(directory).notes == (
        "1 weight that the model does not need left out: a\\n\\x1b[31mb" + "c" * 88,
    )


def test_layers_beyond_those_of_the_configuration(
    checkpoint: Callable[..., tuple[Any, Path]],
) -> None:
    """As theirs, which warns."""
    _, directory = checkpoint(decoder_layers=3)
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"decoder_layers": 3', '"decoder_layers": 2'))
    theirs = transformers.BartForConditionalGeneration.from_pretrained(directory).eval()
    read = read_checkpoint(directory)
    assert isinstance(read.model, Transformer)
    assert_same_tensors(theirs, read.model, SOURCES, TARGET)
    assert "model.decoder.layers.2." in read.notes[0]


def test_a_misnamed_weight_is_shown_with_the_missing_one(
    checkpoint: Callable[..., tuple[Any, Path]],
) -> None:
    _, directory = checkpoint()
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["model.encoder.layers.0.fc3.bias"] = weights.pop("model.encoder.layers.0.fc1.bias")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_hugging_face(directory)
    assert caught.value.problems == [
        "missing weight model.encoder.layers.0.fc1.bias",
        "unknown weight model.encoder.layers.0.fc3.bias",
    ]


@pytest.mark.parametrize("same", ["encoder", "decoder", "all", "none"])
def test_tables_that_are_not_tied(same: str, checkpoint: Callable[..., tuple[Any, Path]]) -> None:
    """With `tie_word_embeddings` false, transformers 5 has four tables."""
    _, directory = checkpoint(tie_word_embeddings=False)
    file = directory / "model.safetensors"
    weights = load_file(file)
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_tokens.weight"
        assert not weights[name].equal(weights["model.shared.weight"])
        if same in (stack, "all"):
            weights[name] = weights["model.shared.weight"].clone()
    save_file(weights, file, metadata={"format": "pt"})
    theirs = transformers.BartForConditionalGeneration.from_pretrained(directory).eval()
    ours = load_hugging_face(directory)
    assert ours.config.tie_source_target == (same == "all")
    assert not ours.config.tie_target_output
    assert_same_tensors(theirs, ours, SOURCES, TARGET)


def test_tables_that_are_tied_must_be_equal(checkpoint: Callable[..., tuple[Any, Path]]) -> None:
    _, directory = checkpoint()
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["model.encoder.embed_tokens.weight"] = weights["model.shared.weight"] + 1
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"must be equal, because the configuration ties"):
        load_hugging_face(directory)


@pytest.mark.parametrize("start", [1, 2], ids=["starts with padding", "starts with the end"])
@pytest.mark.parametrize("source", [[1, 7, 1, 1, 9, 2], [7, 3, 1], [1], [5, 6, 7, 8]])
def test_the_padding_token_of_m2m_100_has_no_position(
    start: int,
    source: list[int],
    tmp_path: Path,
    varied: Callable[..., Any],
    runtime_greedy: Callable[..., list[list[int]]],
) -> None:
    """Inside a source, as the first token and when it is generated."""
    config = transformers.M2M100Config(**SHAPE | {"decoder_start_token_id": start})
    theirs = varied(transformers.M2M100ForConditionalGeneration(config))
    with torch.no_grad():  # makes the padding token frequent
        theirs.model.shared.weight[1] *= 3
    (checkpoint := tmp_path / "checkpoint").mkdir()
    theirs.save_pretrained(checkpoint)
    ours = load_hugging_face(checkpoint)
    ids = torch.tensor([source])
    generated = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, num_beams=1
    )
    expected = [generated[0, 1:].tolist()]
    assert greedy_uncached(ours, [source], 12) == expected
    assert runtime_greedy(ours, tmp_path, "neutral", [source], 12) == expected
    assert runtime_greedy(ours, tmp_path, "cpu", [source], 12) == expected


def test_positions_of_m2m_100_grow_with_the_longest_output(
    tmp_path: Path, varied: Callable[..., Any]
) -> None:
    config = transformers.M2M100Config(**SHAPE | {"max_position_embeddings": 8})
    theirs = varied(transformers.M2M100ForConditionalGeneration(config))
    theirs.generation_config = transformers.GenerationConfig(
        max_length=21, min_length=18, eos_token_id=2, decoder_start_token_id=2, pad_token_id=1
    )
    theirs.save_pretrained(tmp_path)
    read = read_checkpoint(tmp_path)
    ours = read.model
    assert isinstance(ours, Transformer)
    assert (ours.config.max_target_positions, read.notes) == (20, ())
    source = [7, 3, 9, 2]
    expected = theirs.generate(torch.tensor([source]), num_beams=1)[0, 1:].tolist()
    assert len(expected) > 16
    assert greedy_uncached(ours, [source], 20) == [expected]
