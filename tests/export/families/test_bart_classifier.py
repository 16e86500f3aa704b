"""BartForSequenceClassification, read and compared with Hugging Face's implementation."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    EncoderModel,
    ModelConfig,
    load_checkpoint,
    pad,
    save_checkpoint,
)

transformers: Any = importlib.import_module("transformers")

END = 2
SOURCES = [
    *([0, 7, 9, END], [0, 5, 30, END, END, 8, END], [0, 3, END], [END], [0, END, 4, 6, 11, 12, 28]),
    *([0, 10, 11, END, END, 14, 15, 16, 17, 18, 19, 20, END], [0, 21, END, END, 22, 23, END]),
]
"""Ragged, with one to three end tokens, of which one is not at the end, and of all positions."""
SHAPES: dict[str, dict[str, Any]] = {
    "heads of 8": {"d_model": 24, "heads": 3, "ffn": 40, "layers": (2, 3)},
    "head of 33": {"d_model": 33, "heads": 1, "ffn": 19, "layers": (2, 1), "act": "relu"},
    "heads of 64": {"d_model": 128, "heads": 2, "ffn": 50, "layers": (1, 2), "scale": True},
}
THREE = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}

Make = Callable[..., tuple[Any, Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(shape: str = "heads of 8", **changes: Any) -> tuple[Any, Path]:
        sizes = SHAPES[shape]
        config = transformers.BartConfig(
            **{
                "vocab_size": 31,
                "d_model": sizes["d_model"],
                "encoder_layers": sizes["layers"][0],
                "decoder_layers": sizes["layers"][1],
                "encoder_attention_heads": sizes["heads"],
                "decoder_attention_heads": sizes["heads"],
                "encoder_ffn_dim": sizes["ffn"],
                "decoder_ffn_dim": sizes["ffn"],
                "activation_function": sizes.get("act", "gelu"),
                "scale_embedding": sizes.get("scale", False),
                "max_position_embeddings": 13,
                "init_std": 0.2,
            }
            | THREE
            | changes
        )
        torch.manual_seed(0)
        theirs = transformers.BartForSequenceClassification(config).eval()
        for parameter in theirs.parameters():  # biases and gains differ from what they begin as
            parameter.data += 0.1 * torch.randn_like(parameter)
        theirs.save_pretrained(tmp_path / "bart")
        return theirs, tmp_path / "bart"

    return make


def changed(directory: Path, **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def read(directory: Path) -> EncoderModel:
    model = read_checkpoint(directory).model
    assert isinstance(model, EncoderModel)
    return model


@torch.inference_mode()
def assert_same(theirs: Any, ours: EncoderModel) -> None:
    """Theirs reads each row alone, since it refuses rows with different numbers of end tokens."""
    expected = [theirs(input_ids=torch.tensor([row])).logits[0] for row in SOURCES]
    for rows in (SOURCES, SOURCES[:1], SOURCES[5:6]):
        (found,) = ours(*pad(rows, ours.config.pad_token_id))
        own = torch.stack([expected[SOURCES.index(row)] for row in rows])
        torch.testing.assert_close(found, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_hugging_face(shape: str, make: Make) -> None:
    theirs, directory = make(shape)
    ours = read(directory)
    assert_same(theirs.double(), ours.double())
    head = ours.config.head
    assert head is not None and head.labels == tuple(THREE["id2label"].values())
    assert not read_checkpoint(directory).notes


def test_tokens_that_the_configuration_names(make: Make) -> None:
    theirs, directory = make(eos_token_id=7, decoder_start_token_id=0, pad_token_id=3)
    theirs.config.eos_token_id = END  # every row has one
    assert_same(theirs, read(changed(directory, eos_token_id=END)))


def test_tables_that_are_not_tied(make: Make) -> None:
    theirs, directory = make(tie_word_embeddings=False)
    ours = read(directory)
    assert not ours.config.tie_source_target
    assert_same(theirs, ours)


def test_a_row_without_an_end_token_is_read_at_its_last_token(make: Make) -> None:
    theirs, directory = make()
    row = [0, 9, 17, 5]
    with torch.inference_mode():
        (found,) = read(directory)(*pad([row, SOURCES[5]], 1))
        hidden = theirs.model(input_ids=torch.tensor([row])).last_hidden_state
        expected = theirs.classification_head(hidden[:, -1])[0]
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_of_our_own(make: Make, tmp_path: Path) -> None:
    theirs, directory = make()
    ours = read(directory)
    save_checkpoint(ours, tmp_path / "own")
    again = load_checkpoint(tmp_path / "own")
    assert isinstance(again, EncoderModel) and again.config == ours.config
    assert_same(theirs, again)


def test_fields_of_published_checkpoints(make: Make) -> None:
    """Those of bart-large-mnli, which versions of transformers before 4 wrote."""
    theirs, directory = make()
    fields: dict[str, Any] = {
        "_num_labels": 3,
        "add_bias_logits": False,
        "add_final_layer_norm": False,
    }
    fields |= {"classif_dropout": 0.0, "gradient_checkpointing": False, "num_hidden_layers": 12}
    fields |= {"normalize_before": False, "normalize_embedding": True, "output_past": False}
    fields |= {"static_position_embeddings": False, "model_type": "bart"}
    changed(directory, **fields)
    assert not read_checkpoint(directory).notes
    assert_same(theirs, read(directory))


@pytest.mark.parametrize(
    ("changes", "multi_label", "labels"),
    [
        ({"problem_type": "multi_label_classification"}, True, 3),
        ({"id2label": {0: "score"}, "problem_type": "regression"}, False, 1),
    ],
)
def test_kinds_of_labels(
    changes: dict[str, Any], multi_label: bool, labels: int, make: Make
) -> None:
    head = read(make(**changes)[1]).config.head
    assert head is not None and (head.multi_label, len(head.labels)) == (multi_label, labels)


def test_labels_that_are_not_stated_are_three(make: Make) -> None:
    """As transformers has them; other families have two."""
    theirs, directory = make()
    path = directory / "config.json"
    stated = json.loads(path.read_text())
    path.write_text(
        json.dumps({n: v for n, v in stated.items() if n not in ("id2label", "label2id")})
    )
    head = read(directory).config.head
    default = transformers.BartConfig.from_pretrained(directory).id2label
    assert head is not None and head.labels == tuple(default.values())
    assert head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert_same(theirs, read(directory))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"architectures": ["BartForQuestionAnswering"]},
            "config.json: architectures: expected BartForConditionalGeneration or "
            "BartForSequenceClassification, found BartForQuestionAnswering",
        ),
        (
            {"architectures": ["MBartForSequenceClassification"], "model_type": "mbart"},
            "config.json: architectures: expected MBartForConditionalGeneration, found "
            "MBartForSequenceClassification",
        ),
        (
            {"architectures": ["T5ForTokenClassification"], "model_type": "t5"},
            "config.json: architectures: expected T5ForConditionalGeneration, found "
            "T5ForTokenClassification",
        ),
        ({"problem_type": "regression"}, "problem_type: regression of 3 numbers, expected one"),
        ({"id2label": {"1": "a"}}, "id2label: expected numbers from 0 on, found [1]"),
        ({"eos_token_id": 31}, "end_token_id must be in the target vocabulary [0, 31), found 31"),
        ({"eos_token_id": [2, 3]}, "end_token_id must be an integer"),
    ],
    ids=str,
)
def test_configurations_that_are_refused(changes: dict[str, Any], problem: str, make: Make) -> None:
    _, directory = make()
    with pytest.raises(ConfigError) as refused:
        read_checkpoint(changed(directory, **changes))
    assert any(each.startswith(problem) for each in refused.value.problems), refused.value.problems


def test_a_head_that_is_missing(make: Make) -> None:
    theirs, directory = make()
    theirs.model.save_pretrained(directory)
    changed(directory, architectures=["BartForSequenceClassification"])
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(directory)
    assert refused.value.problems == sorted(
        f"missing weight classification_head.{layer}.{kind}"
        for layer in ("dense", "out_proj")
        for kind in ("weight", "bias")
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"decoder_layers": -1}, "decoder_layers -1 before a head are for"),
        ({"d_embedding": 8}, "decoder_layers 3 before a head are for"),
        ({"head": {"task": "embedding"}}, "decoder_layers 3 before a head are for"),
        ({"start_token_id": 31}, "start_token_id must be in the target vocabulary [0, 31)"),
        ({"max_target_positions": 9}, "max_target_positions must be 0 in a model without decoder"),
        ({"decoder_layers": "3"}, "decoder_layers must be an integer"),
    ],
    ids=str,
)
def test_settings_of_decoder_layers_before_a_head(
    changes: dict[str, Any], problem: str, make: Make
) -> None:
    values = json.loads(json.dumps(read(make()[1]).config.to_dict()))
    assert ModelConfig.from_dict(values).rereads_source
    with pytest.raises(ConfigError) as refused:
        ModelConfig.from_dict(values | changes)
    assert any(each.startswith(problem) for each in refused.value.problems), refused.value.problems
