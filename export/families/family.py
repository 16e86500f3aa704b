"""A family of Hugging Face checkpoints: everything that sets it apart, as one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dragoman.reference_model import GenerationConfig, ModelConfig
from dragoman.reference_model.config import Activation

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerKind
from .generation import generation_config


@dataclass(frozen=True)
class Family:
    """All that is known of a family of checkpoints.

    Attributes:
        model_type: its name in `config.json`
        describes: models that people know it by
        config: fields of `config.json` -> configuration

            Raises: ConfigError, with everything that a `ModelConfig` cannot express.
        weight_name: name of a parameter of `Transformer` -> its name in the checkpoint
        complete: changes the weights as read until each parameter is among them in the shape that
            `Transformer` gives it: tied, transposed or scaled; returns problems
        computed: weights that checkpoints leave out: name -> what computes it. Called for those
            that are not among the weights, once all others have the sizes that the configuration
            states
        tokenizers: the kinds of tokenizers that its checkpoints have; if the tokenizer's class does
            not tell the kind, it is the first that suits the checkpoint
        with_weights: called before `complete`: the configuration, corrected by what only the fields
            and the weights together show; may change the weights
        generation: directory, generation settings, configuration and notes -> rules and strategy of
            decoding; appends to the notes where these may surprise

            Raises: CheckpointError, ConfigError, with everything that is not supported.
        has_encoder: False: the family's models are decoders alone
        positions_grow: positions are computed, and as many as the generation settings ask for
        summarizes: its checkpoints write summaries, which are judged otherwise than translations
    """

    model_type: str
    describes: str
    config: Callable[[Values], ModelConfig]
    weight_name: Callable[[str], str]
    complete: Callable[[Weights, ModelConfig], list[str]]
    tokenizers: tuple[TokenizerKind, ...]
    with_weights: Callable[[Values, ModelConfig, Weights], ModelConfig] = (
        lambda values, config, weights: config
    )
    computed: Callable[[ModelConfig], Mapping[str, Callable[[], Tensor]]] = lambda config: {}
    generation: Callable[[Path, Values, ModelConfig, list[str]], GenerationConfig] = (
        lambda directory, settings, config, notes: generation_config(settings, config, notes)
    )
    has_encoder: bool = True
    positions_grow: bool = False
    summarizes: bool = False


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
"""By Hugging Face's names."""


def activation(values: Values, field: str, default: str, problems: list[str]) -> Activation:
    """The activation that a field names; an unknown name is added to `problems`."""
    name = values.get(field, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        problems.append(f"{field}: expected one of {known}, found {name!r}")
        return "relu"
    return ACTIVATIONS[name]


def renamed(name: str, parts: Mapping[str, str]) -> str:
    """A name with parts replaced, in the order of the mapping."""
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name


def merge_tied(weights: Weights, names: list[str]) -> list[str]:
    """Keep one of the names of a tied weight, the first; returns problems where values differ.

    Which of its names a file contains depends on the library that wrote it.
    """
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
