"""Going on from a trained model of Dragoman's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.errors import DragomanError

from ..checkpoint import WEIGHTS_FILE, load_checkpoint
from ..config import ModelConfig
from ..training.teacher_forcing import Trainable
from .recipe import Tokenizers
from .tokenizer_files import read_tokenizers


@dataclass(frozen=True)
class Beginning:
    """A trained model, and the tokenizers that it was trained with."""

    digest: str
    """The SHA-256 of its weights, of which a name says less."""
    model: Trainable
    tokenizers: Tokenizers


def read_beginning(directory: Path, config: ModelConfig) -> Beginning:
    """
    Args:
        config: of the training that begins there: its model must be of the same shape

    Raises:
        CheckpointError, ConfigError: the weights or the configuration cannot be read.
        DragomanError: tokenizers are missing or damaged, or the model has another shape.
    """
    model = load_checkpoint(directory)
    if not isinstance(model, Trainable):
        raise DragomanError(
            f"{directory}: expected a model that decodes to go on from, found an encoder alone"
        )
    expected, found = (replace(c, dropout=0.0).to_dict() for c in (config, model.config))
    differing = [
        f"{name} {found[name]} instead of {value}"
        for name, value in expected.items()
        if found[name] != value
    ]
    if differing:
        raise DragomanError(
            f"{directory}: expected a model of the shape that is to be trained, found "
            f"{', '.join(differing)}"
        )
    _set_dropout(model, config)
    digest = hashlib.sha256((directory / WEIGHTS_FILE).read_bytes()).hexdigest()
    return Beginning(digest, model, read_tokenizers(directory))


def _set_dropout(model: Trainable, config: ModelConfig) -> None:
    import torch

    model.config = config
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = config.dropout
