"""A family of checkpoints: how its configuration and its weights become a reference model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dragoman.reference_model import ConfigError, ModelConfig
from dragoman.reference_model.config import Activation

Values = Mapping[str, Any]
"""The fields of a `config.json`."""

Weights = dict[str, Tensor]
"""By the names of the checkpoint."""


@dataclass(frozen=True)
class Family:
    """Attributes:
    model_type: what `config.json` calls it
    describes: models that people know it by
    config: fields of `config.json` -> configuration

        Raises: ConfigError, with everything that a `ModelConfig` cannot express.
    weight_name: name of a parameter of `Transformer` -> its name in the checkpoint
    complete: changes the weights that were read so that every parameter is among them in the
        shape of `Transformer`: tied, computed, transposed or scaled; gives what is wrong
    with_weights: before that, what only fields of `config.json` and weights together say: the
        configuration as it is with these weights; may change them
    """

    model_type: str
    describes: str
    config: Callable[[Values], ModelConfig]
    weight_name: Callable[[str], str]
    complete: Callable[[Weights, ModelConfig], list[str]]
    with_weights: Callable[[Values, ModelConfig, Weights], ModelConfig] = (
        lambda values, config, weights: config
    )


ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Names of Hugging Face's activations."""


def activation(values: Values, field: str, default: str, problems: list[str]) -> Activation:
    """The activation that a field names; an unknown one is added to `problems`."""
    name = values.get(field, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        problems.append(f"{field}: expected one of {known}, found {name!r}")
        return "relu"
    return ACTIVATIONS[name]


MOST_POSITIONS = 10**6
MOST_NUMBERS = 2**30
"""In a table of positions: 4 GiB."""


def check_positions(config: ModelConfig) -> None:
    """To be called before tables are computed: what no weight states no weight can contradict.

    Raises:
        ConfigError: there are more positions than any model has.
    """
    problems = []
    for name in ("max_source_positions", "max_target_positions"):
        positions = getattr(config, name)
        if positions > MOST_POSITIONS:
            problems.append(f"{name}: expected at most {MOST_POSITIONS}, found {positions}")
        elif positions * config.d_model > MOST_NUMBERS:
            problems.append(
                f"{name}: expected a table of at most {MOST_NUMBERS} numbers, "
                f"found {positions} positions of {config.d_model}"
            )
    if problems:
        raise ConfigError(problems)


def renamed(name: str, parts: Mapping[str, str]) -> str:
    """A name with parts replaced, in their order."""
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name


def merge_tied(weights: Weights, names: list[str]) -> list[str]:
    """Leave of weights that are one under several names one, under the first; where they differ
    that is a problem. Which of its names a file has depends on the library that wrote it."""
    first, *others = [name for name in names if name in weights] or names[:1]
    problems = [
        f"{first} and {other} must be equal, for the configuration ties them"
        for other in others
        if not weights[first].equal(weights[other])
    ]
    found = [weights.pop(name) for name in (first, *others) if name in weights]
    if found:
        weights[names[0]] = found[0]
    return problems
