"""The record of a recipe: everything needed to train a model from scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from ..config import ModelConfig
from ..training import TrainingOptions
from .examples import Example

SOURCE_TOKENIZER_FILE = "source_tokenizer.json"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"
HELD_OUT_FILE = "held_out.tsv"
RECIPE_FILE = "recipe.json"


@dataclass(frozen=True)
class Data:
    """Examples for training, validation and the final scores.

    Attributes:
        dropped: number of pairs removed from `train`, by reason
    """

    train: list[Example]
    validation: list[Example]
    held_out: list[Example]
    dropped: Mapping[str, int] = field(default_factory=dict)


class Tokenizers(NamedTuple):
    """The tokenizers of both sides, each of which ends a text with the end token."""

    source: Tokenizer
    target: Tokenizer


Score = Callable[[Sequence[str], Sequence[Example]], dict[str, float]]
"""Outputs and their examples -> figures by name, the recipe's metric first."""


@dataclass(frozen=True)
class Recipe:
    """A model that Dragoman can train from scratch."""

    name: str
    summary: str
    config: ModelConfig
    options: TrainingOptions
    load_data: Callable[[Path | None], Data]
    """The data, from a folder for recipes that need one."""
    make_tokenizers: Callable[[Data], Tokenizers]
    metric: str
    """The name of the figure that training reports after each epoch, such as "word error"."""
    score: Score | None
    """None for a language model, whose figure is its perplexity."""
    metrics: Sequence[str] = ()
    """Names in `dragoman.metrics` of the figures that `score` returns; if empty, `score` is the
    recipe's own error rate."""
    licences: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """Licence texts of the data, by the name of the file each is written to."""
    duration: str = ""
    """The duration of the training, as a text for users."""
    vocabulary: str = ""
    """The options of `make_tokenizers`, if any. A training with other tokenizers cannot resume."""
    alignment_layer: int | None = None
    """The decoder layer, counted from 0, whose cross-attention aligns words best; None: the last
    but one."""
    shown: Callable[[float], str] = "{:.2%}".format
    """Formats a figure for users."""
