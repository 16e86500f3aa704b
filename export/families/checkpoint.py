"""The contents of a checkpoint directory, and building a model from its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from dragoman.files.text_lines import printable
from dragoman.reference_model import CheckpointError, ModelConfig, ReferenceModel
from dragoman.reference_model.checkpoint import (
    Uninitialized,
    check_layers,
    check_weights,
    too_large,
    weight_shapes,
)

from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerFiles


@dataclass(frozen=True)
class Checkpoint:
    """A model and its tokenizers."""

    model: ReferenceModel
    """Fp32, in evaluation mode."""
    tokenizers: TokenizerFiles | None
    """None if the model only takes token ids."""
    notes: tuple[str, ...] = ()
    """Sentences on settings whose effect differs from what the files suggest."""
    summarizes: bool = False
    """Whether models of the family write summaries."""


M = TypeVar("M", bound=nn.Module)

SHOWN, LONGEST_NAME = 5, 100
"""Maximum numbers of weight names in a note, and of characters of a name."""


def build(
    config: ModelConfig,
    make: Callable[[], M],
    weights: Weights,
    weight_name: Callable[[str], str],
    origin: Path,
    problems: Sequence[str] = (),
    computed: Mapping[str, Callable[[], Tensor]] = MappingProxyType({}),
    notes: list[str] | None = None,
) -> M:
    """Make a model in evaluation mode, fp32, with exactly these weights.

    Weights in float32 are not copied: where the file is mapped, its pages are the model's memory,
    which the system can drop and read again. What a training changes is not written to the file.

    A `CheckpointError` lists `problems`, and all weights that are missing, unknown, misshapen or
    not finite.

    Args:
        make: makes the model of this configuration, with any weights
        weights: weights in the shapes of the model, by their names in the checkpoint
        weight_name: name of a parameter of the model -> name in the checkpoint
        computed: optional weights: name -> function that computes the weight
        notes: receives a sentence on ignored weights, such as the heads of other tasks; None:
            such weights are a problem
    """
    # Shapes are compared before memory is allocated, since a damaged configuration states any size.
    check_layers(config, weights)
    shapes = weight_shapes(config)
    expected = {weight_name(name): shape for name, shape in shapes.items()}
    absent = {name: compute for name, compute in computed.items() if name not in weights}
    stored = {name: shape for name, shape in expected.items() if name not in absent}
    if notes is not None:
        weights = _needed(weights, stored, notes)
    check_weights(stored, weights, origin, problems)
    try:
        with Uninitialized():
            model = make()
    except (RuntimeError, MemoryError) as error:
        raise too_large(error) from error
    taken: set[int] = set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs = weight_name(name)
            value = absent[theirs]() if theirs in absent else weights[theirs]
            if _serves_as_it_is(value, parameter) and value.data_ptr() not in taken:
                taken.add(value.data_ptr())
                parameter.data = value.detach()
            else:
                parameter.copy_(value)
    return model.eval()


def _serves_as_it_is(value: Tensor, parameter: Tensor) -> bool:
    aligned = value.data_ptr() % value.itemsize == 0
    return value.dtype == parameter.dtype and value.is_contiguous() and aligned


def _needed(weights: Weights, names: Iterable[str], notes: list[str]) -> Weights:
    """Return the needed weights; all if one is missing, which another may be by a wrong name."""
    needed = set(names)
    unneeded = sorted(weights.keys() - needed)
    if not unneeded or not needed <= weights.keys():
        return weights
    shown = ", ".join(printable(name)[:LONGEST_NAME] for name in unneeded[:SHOWN])
    shown += ", ..." if len(unneeded) > SHOWN else ""
    count = f"{len(unneeded)} weights" if len(unneeded) > 1 else "1 weight"
    notes.append(f"{count} that the model does not need left out: {shown}")
    return {name: weight for name, weight in weights.items() if name in needed}


def measure(
    weights: Mapping[str, Tensor],
    axes: Mapping[str, int],
    origin: Path,
    problems: Sequence[str] = (),
) -> list[tuple[int, ...]]:
    """Return the shapes of the weights that a configuration is derived from.

    `axes` has the required number of axes of each. A `CheckpointError` lists `problems`, and all of
    these weights that are missing or misshapen.
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
    """Count the layers whose weights are named `prefix`, a number, a dot and the rest."""
    rest = (name[len(prefix) :] for name in weights if name.startswith(prefix))
    return len({n.partition(".")[0] for n in rest if n.partition(".")[0].isdecimal()})
