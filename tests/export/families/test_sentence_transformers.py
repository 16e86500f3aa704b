"""Directories of sentence-transformers, read as that library reads them, in every layout."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import CheckpointError, EncoderModel

transformers: Any = importlib.import_module("transformers")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
WIDTH, VECTOR, POSITIONS = 16, 6, 12

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=POSITIONS,
    )
    directory: Path = tmp_path_factory.mktemp("bert")
    transformers.BertModel(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return directory


@pytest.fixture
def write(bert: Path, tmp_path: Path) -> Write:
    """A directory with these modules: kind -> folder; "" is the directory itself."""

    def write(**folders: str) -> Path:
        directory = tmp_path / "sentences"
        modules = [{"type": f"library.{kind}", "path": path} for kind, path in folders.items()]
        for folder in folders.values():
            (directory / folder).mkdir(parents=True, exist_ok=True)
        for file in bert.iterdir():
            (directory / folders["Transformer"] / file.name).symlink_to(file)
        (directory / "modules.json").write_text(json.dumps(modules))
        pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
        (directory / folders["Pooling"] / "config.json").write_text(json.dumps(pooling))
        if "Dense" in folders:
            dense = directory / folders["Dense"]
            sizes = {"in_features": WIDTH, "out_features": VECTOR, "bias": True}
            (dense / "config.json").write_text(json.dumps(sizes))
            weight = torch.randn(VECTOR, WIDTH, generator=torch.Generator().manual_seed(1))
            tensors = {"linear.weight": weight, "linear.bias": torch.arange(VECTOR) / 10}
            save_file(tensors, dense / "model.safetensors")
        return directory

    return write


def read(directory: Path) -> EncoderModel:
    model = read_checkpoint(directory).model
    assert isinstance(model, EncoderModel)
    return model


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
        weight = torch.randn(VECTOR, WIDTH, generator=torch.Generator().manual_seed(1))
        dense.load_state_dict({"weight": weight, "bias": torch.arange(VECTOR) / 10})
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
    with pytest.raises(CheckpointError):
        read(directory)
