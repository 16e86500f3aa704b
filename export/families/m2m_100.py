"""M2M100 (Fan et al. 2020) and NLLB (NLLB Team 2022): pre-norm, sinusoidal positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dragoman.reference_model import ConfigError, ModelConfig

from .bart import POSITIONS, config_of, tie, weight_name
from .family import Family, Values, Weights


def _config(values: Values) -> ModelConfig:
    config = config_of(
        values,
        {"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
        norm_order="pre",
    )
    if config.d_model < 4:
        raise ConfigError(
            [f"d_model: expected at least 4, for two wavelengths, found {config.d_model}"]
        )
    return config


def position_table(first: int, positions: int, d_model: int) -> Tensor:
    """Sines in the first half, cosines in the second, wavelengths from 2 pi to 20000 pi, both
    reached; float32 throughout, as the models were trained. [positions, d_model]

    Args:
        first: the position of the first row
    """
    half = d_model // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angle = torch.arange(first, first + positions).float()[:, None] * frequency
    missing = torch.zeros(positions, d_model - 2 * half)
    return torch.cat([angle.sin(), angle.cos(), missing], dim=1)


def _complete(weights: Weights, config: ModelConfig) -> list[str]:
    """The table is not stored. Its row of the padding token is left out: positions begin after."""
    for stack, name in POSITIONS.items():
        for old in (name, f"model.{stack}.embed_positions.weights"):
            weights.pop(old, None)
        positions = getattr(config, f"max_{'source' if stack == 'encoder' else 'target'}_positions")
        weights[name] = position_table(config.pad_token_id + 1, positions, config.d_model)
    return tie(weights, config)


M2M_100 = Family("m2m_100", "M2M100, NLLB", _config, weight_name, _complete)
