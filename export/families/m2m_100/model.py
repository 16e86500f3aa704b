"""The model of M2M100 and NLLB: BART with pre-norm and sinusoidal positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dragoman.reference_model import ConfigError, ModelConfig

from ...formats.json_files import Values
from ...formats.tensor_files import Weights
from ..bart import POSITIONS, config_of, tie, weight_name

__all__ = ["check_width", "complete", "computed", "config", "position_table", "weight_name"]


def config(values: Values) -> ModelConfig:
    """The configuration that a `config.json` describes."""
    described = config_of(
        values,
        {"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
        norm_order="pre",
        pad_has_position=False,
    )
    check_width(described.d_model)
    return described


def check_width(d_model: int) -> None:
    """
    Raises:
        ConfigError: there are too few columns for the first and the last wavelength.
    """
    if d_model < 4:
        raise ConfigError([f"d_model: expected at least 4, for two wavelengths, found {d_model}"])


def position_table(first: int, positions: int, d_model: int) -> Tensor:
    """Sines in the first half of the columns, cosines in the second, [positions, d_model].

    Wavelengths run from 2 pi to 20000 pi, both included. Computed in float32, as in training.

    Args:
        first: the position of the first row
    """
    half = d_model // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angle = torch.arange(first, first + positions).float()[:, None] * frequency
    missing = torch.zeros(positions, d_model - 2 * half)
    return torch.cat([angle.sin(), angle.cos(), missing], dim=1)


def complete(weights: Weights, config: ModelConfig) -> list[str]:
    """Drop the tables of positions, which old checkpoints store, and keep one of tied tables."""
    for stack, name in POSITIONS.items():
        for old in (name, f"model.{stack}.embed_positions.weights"):
            weights.pop(old, None)
    return tie(weights, config)


def computed(config: ModelConfig) -> Mapping[str, Callable[[], Tensor]]:
    """The tables of positions, which begin after the padding token's row."""
    first, d_model = config.pad_token_id + 1, config.d_model
    source, target = config.max_source_positions, config.max_target_positions
    return {
        POSITIONS["encoder"]: lambda: position_table(first, source, d_model),
        POSITIONS["decoder"]: lambda: position_table(first, target, d_model),
    }
