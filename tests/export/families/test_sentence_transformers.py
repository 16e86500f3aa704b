"""Directories of sentence-transformers, read as that library reads them, in every layout."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.errors import DragomanError
from dragoman.reference_model import CheckpointError

from .sentence_directories import POSITIONS, VECTOR, WIDTH, Write, dense_weights, read

transformers: Any = importlib.import_module("transformers")


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
@pytest.mark.parametrize("dropout", ["first", "last", None])
def test_modules_are_found_by_their_kind(
    transformer: str, dropout: str | None, bert: Path, write: Write
) -> None:
    """The vector is that of PyTorch's own modules, in which dropout changes nothing."""
    folders = {"Pooling": "1_P", "Dense": "dense of ours", "Normalize": "3_N"}
    if dropout == "first":
        folders = {"Dropout": "1_D"} | folders
    elif dropout == "last":
        folders["Dropout"] = "9_D"
    directory = write(Transformer=transformer, **folders)
    source = torch.tensor([[2, 5, 9, 7, 3]])
    mask = torch.ones_like(source).bool()
    with torch.inference_mode():
        hidden, vector = read(directory)(source, mask)
        theirs = transformers.BertModel.from_pretrained(bert).eval()(source).last_hidden_state
        dense = torch.nn.Linear(WIDTH, VECTOR)
        dense.load_state_dict(dense_weights())
        expected = torch.tanh(dense(theirs.mean(1)))
    torch.testing.assert_close(hidden, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vector, expected / expected.norm(), rtol=1e-5, atol=1e-5)


NAMES = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]


@pytest.mark.parametrize("name", NAMES)
def test_settings_by_any_of_their_names(name: str, write: Write) -> None:
    """As `Transformer.load_config` of the library has them."""
    directory = write(Transformer="0_Transformer", Pooling="1_Pooling")
    assert read(directory).config.max_source_positions == POSITIONS
    path = directory / "0_Transformer" / f"sentence_{name}_config.json"
    path.write_text(json.dumps({"max_seq_length": 5, "do_lower_case": False}))
    assert read(directory).config.max_source_positions == 5
    path.write_text(json.dumps({"max_seq_length": "5"}))
    with pytest.raises(
        CheckpointError, match=rf"sentence_{name}_config\.json: max_seq_length: exp"
    ):
        read(directory)


def test_the_first_name_counts(write: Write) -> None:
    directory = write(Transformer="", Pooling="1_Pooling")
    for length, name in enumerate(reversed(NAMES), start=3):
        text = json.dumps({"max_seq_length": length})
        (directory / f"sentence_{name}_config.json").write_text(text)
        assert read(directory).config.max_source_positions == length


@pytest.mark.parametrize(
    ("stated", "expected"),
    [(5, 5), (POSITIONS + 9, POSITIONS), (10**30, POSITIONS), (1e30, POSITIONS)],
)
def test_the_length_in_the_settings_of_the_tokenizer(
    stated: float, expected: int, write: Write
) -> None:
    """Where version 5.7 of the library writes it; one in its own settings comes before it."""
    directory = write(Transformer="0_Transformer", Pooling="1_Pooling")
    transformer = directory / "0_Transformer"
    (transformer / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    settings = transformer / "sentence_bert_config.json"
    settings.write_text(json.dumps({"transformer_task": "feature-extraction"}))
    assert read(directory).config.max_source_positions == expected
    settings.write_text(json.dumps({"max_seq_length": 7}))
    assert read(directory).config.max_source_positions == 7


@pytest.mark.parametrize("path", ["a\0b", "..", "/", "1_P/../.."], ids=repr)
def test_folders_outside_the_directory(path: str, write: Write) -> None:
    directory = write(Transformer="", Pooling="1_P")
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": path}]
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="expected paths within the directory") as caught:
        read(directory)
    assert str(caught.value).isprintable()


def test_links_in_a_circle(write: Write) -> None:
    directory = write(Transformer="", Pooling="1_P")
    (directory / "1_P" / "config.json").unlink()
    (directory / "1_P").rmdir()
    (directory / "1_P").symlink_to("1_P")
    with pytest.raises(DragomanError, match="1_P: expected a file, found a link that leads"):
        read(directory)
