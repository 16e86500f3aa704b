"""Directories as sentence-transformers writes them, around a random BERT."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import EncoderModel

transformers: Any = importlib.import_module("transformers")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
WIDTH, VECTOR, POSITIONS = 16, 6, 12

Write = Callable[..., Path]


def save_bert(directory: Path) -> None:
    """Hidden states are below zero, which is what would stand at padding without a mask."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=POSITIONS,
    )
    bert = transformers.BertModel(config)
    bert.encoder.layer[-1].output.LayerNorm.bias.data -= 4
    bert.save_pretrained(directory)
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))


def dense_weights(bias: bool = True) -> dict[str, Tensor]:
    """A module of `torch.nn.Linear`."""
    weight = torch.randn(VECTOR, WIDTH, generator=torch.Generator().manual_seed(1))
    return {"weight": weight} | ({"bias": torch.arange(VECTOR) / 10} if bias else {})


def write_directory(
    directory: Path,
    bert: Path,
    folders: dict[str, str],
    pooling: dict[str, Any] | None = None,
    dense: dict[str, Any] | None = None,
) -> Path:
    """A directory with modules.

    Args:
        folders: kind of a module -> its folder; "" is the directory itself
        pooling: settings in place of mean pooling's
        dense: settings besides the sizes
    """
    modules = [{"type": f"library.{kind}", "path": path} for kind, path in folders.items()]
    for path in folders.values():
        (directory / path).mkdir(parents=True, exist_ok=True)
    for file in bert.iterdir():
        (directory / folders["Transformer"] / file.name).symlink_to(file)
    (directory / "modules.json").write_text(json.dumps(modules))
    modes = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
    settings = {"word_embedding_dimension": WIDTH, **modes}
    (directory / folders["Pooling"] / "config.json").write_text(json.dumps(settings))
    if "Dense" in folders:
        folder = directory / folders["Dense"]
        sizes = {"in_features": WIDTH, "out_features": VECTOR, "bias": True, **(dense or {})}
        (folder / "config.json").write_text(json.dumps(sizes))
        weights = dense_weights(bias=bool(sizes["bias"]))
        tensors = {f"linear.{name}": weight for name, weight in weights.items()}
        save_file(tensors, folder / "model.safetensors")
    return directory


def read(directory: Path) -> EncoderModel:
    model = read_checkpoint(directory).model
    assert isinstance(model, EncoderModel)
    return model
