"""Weights as read -> a reference model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dragoman.reference_model import CheckpointError, GenerationConfig, ModelConfig, Transformer
from dragoman.reference_model.checkpoint import check_weights, too_large, weight_shapes

from ..formats.tensor_files import Weights

SHOWN = 5
"""The most names of weights in a note."""


def build(
    config: ModelConfig,
    generation: GenerationConfig,
    weights: Weights,
    weight_name: Callable[[str], str],
    origin: Path,
    problems: Sequence[str] = (),
) -> Transformer:
    """A model in evaluation mode, fp32, with exactly these weights.

    Args:
        weights: by the names of the checkpoint, in the shapes of `Transformer`
        weight_name: name of a parameter of `Transformer` -> its name in the checkpoint
        origin: the file that the weights come from, for errors
        problems: found so far

    Raises:
        CheckpointError: the problems so far, and all weights that are missing, unknown, misshapen
            or not finite.
        ConfigError: the model does not fit into this machine's memory.
    """
    # Shapes are compared before memory is allocated: a damaged configuration may state any size.
    shapes = weight_shapes(config)
    expected = {weight_name(name): shape for name, shape in shapes.items()}
    check_weights(expected, weights, origin, problems)
    try:
        model = Transformer(config, generation)
    except (RuntimeError, MemoryError) as error:
        raise too_large(error) from error
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[weight_name(name)])
    return model.eval()


def without_unneeded(
    weights: Weights,
    config: ModelConfig,
    weight_name: Callable[[str], str],
    notes: list[str],
) -> Weights:
    """The weights without those that the model does not need, such as the heads of other tasks.

    If needed ones are missing, all are returned: one of the others may be theirs, misnamed.

    Args:
        weight_name: as for `build`
        notes: receives a sentence that names what is left out
    """
    needed = {weight_name(name) for name in weight_shapes(config)}
    unneeded = sorted(weights.keys() - needed)
    if not unneeded or not needed <= weights.keys():
        return weights
    names = ", ".join(unneeded[:SHOWN]) + (", ..." if len(unneeded) > SHOWN else "")
    count = f"{len(unneeded)} weights" if len(unneeded) > 1 else "1 weight"
    notes.append(f"{count} that the model does not need left out: {names}")
    return {name: weight for name, weight in weights.items() if name in needed}


def measure(
    weights: Mapping[str, Tensor],
    axes: Mapping[str, int],
    origin: Path,
    problems: Sequence[str] = (),
) -> list[tuple[int, ...]]:
    """The shapes of the weights that a configuration is derived from.

    Args:
        axes: name of a weight -> the number of axes that it must have
        origin: the file that the weights come from, for errors
        problems: found so far

    Raises:
        CheckpointError: the problems so far, and all these weights that are missing or misshapen.
    """
    missing = [f"missing weight {name}" for name in axes if name not in weights]
    misshapen = [
        f"{name} must have {count} axes, none of size 0, found {list(weights[name].shape)}"
        for name, count in axes.items()
        if name in weights and (weights[name].dim() != count or 0 in weights[name].shape)
    ]
    if missing or misshapen:
        raise CheckpointError(origin, [*problems, *missing, *misshapen])
    return [tuple(weights[name].shape) for name in axes]


def layer_count(weights: Mapping[str, Tensor], prefix: str) -> int:
    """The number of layers whose weights are named `prefix`, a number, a dot and the rest."""
    rest = (name[len(prefix) :] for name in weights if name.startswith(prefix))
    return len({n.partition(".")[0] for n in rest if n.partition(".")[0].isdecimal()})
