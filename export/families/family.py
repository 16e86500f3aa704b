"""The record of a family of Hugging Face checkpoints, and helpers that families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.errors import shown
from dragoman.reference_model import ConfigError, GenerationConfig, ModelConfig
from dragoman.reference_model.config import Activation

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerKind
from .generation import generation_config

ComputedWeights = Mapping[str, Callable[[], Tensor]]
"""The functions that compute weights, by the names of the weights."""


@dataclass(frozen=True)
class Family:
    """A family of encoder-decoder or decoder-only checkpoints."""

    config: Callable[[Values], ModelConfig]
    """Fields of `config.json` -> configuration.

    Raises: ConfigError, which lists everything that a `ModelConfig` cannot express.
    """
    weight_name: Callable[[str], str]
    """Name of a parameter of `Transformer` -> name in the checkpoint."""
    convert_weights: Callable[[Weights, ModelConfig], list[str]]
    """Ties, transposes or scales stored weights until they have the shapes of the parameters of
    `Transformer`; returns problems."""
    tokenizers: tuple[TokenizerKind, ...]
    """Kinds of tokenizers in the family's checkpoints; if the tokenizer's class does not name the
    kind, the first that suits the checkpoint is used."""
    adjust_config: Callable[[Values, ModelConfig, Weights], ModelConfig] = (
        lambda values, config, weights: config
    )
    """Corrects the configuration where it depends on both fields and weights; called before
    `convert_weights`, and may change the weights."""
    computed_weights: Callable[[ModelConfig], ComputedWeights] = lambda config: {}
    """Optional weights: name -> function that computes the weight; called after all other weights
    have the configured sizes."""
    generation: Callable[[Path, Values, ModelConfig, list[str]], GenerationConfig] = (
        lambda directory, settings, config, notes: generation_config(settings, config, notes)
    )
    """Directory, generation settings, configuration and notes -> rules and strategy of decoding;
    adds notes on unexpected effects.

    Raises: CheckpointError, ConfigError, which list all unsupported settings.
    """
    classifier: Callable[[Values], ModelConfig] | None = None
    """Fields of `config.json` -> configuration of a model with a head for classification; None:
    they are refused."""
    has_encoder: bool = True
    """Whether the models have an encoder; False for decoder-only models."""
    positions_grow: bool = False
    """Whether positions are computed, as many as the generation settings need."""
    summarizes: bool = False
    """Whether the models write summaries, which have another metric than translations."""
    settings: frozenset[str] = frozenset()
    """Keys of `config.json` that the family reads."""
    tables: tuple[str, ...] = ()
    """Names of the token tables that the configuration may tie, the output's last."""
    transposed: tuple[str, ...] = ()
    """Endings of the modules whose weights are stored as [in, out]."""


def with_defaults(values: Values, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `config.json`, with defaults for missing ones."""
    return {**defaults, **{name: value for name, value in values.items() if value is not None}}


def make_config(problems: list[str], **fields: Any) -> ModelConfig:
    """Make a configuration, or raise an error with the problems so far and those of the fields."""
    try:
        config = ModelConfig(**fields)
    except ConfigError as error:
        raise ConfigError(problems + error.problems) from error
    if problems:
        raise ConfigError(problems)
    return config


ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Activations by Hugging Face's names."""


def activation(values: Values, field: str, default: str, problems: list[str]) -> Activation:
    """Return the activation that a field names; an unknown name is added to `problems`."""
    name = values.get(field, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        problems.append(f"{field}: expected one of {known}, found {shown(name)}")
        return "relu"
    return ACTIVATIONS[name]


def renamed(name: str, parts: Mapping[str, str]) -> str:
    """Return a name with parts replaced, in the order of the mapping."""
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name


def merge_tied(weights: Weights, names: list[str]) -> list[str]:
    """Keep the first name of a tied weight; return a problem for each whose values differ."""
    first, *others = [name for name in names if name in weights] or names[:1]
    problems = [
        f"{first} and {other} must be equal, because the configuration ties them"
        for other in others
        if not weights[first].equal(weights[other])
    ]
    tied = [weights.pop(name) for name in (first, *others) if name in weights]
    if tied:
        weights[names[0]] = tied[0]
    return problems
