"""Marian (Junczys-Dowmunt et al. 2018), OPUS-MT: the post-norm Transformer, with its own table of
positions and a bias on the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dragoman.reference_model import ModelConfig

from .bart import POSITIONS, add_logits_bias, config_of, tie, weight_name
from .family import Family, Values, Weights

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 58101,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "decoder_start_token_id": 58100,
}


def _config(values: Values) -> ModelConfig:
    shared = values.get("share_encoder_decoder_embeddings", True)
    fields: dict[str, Any] = {"tie_source_target": shared, "logits_bias": True}
    if shared is False and values.get("decoder_vocab_size") is not None:
        fields["target_vocab_size"] = values["decoder_vocab_size"]
    return config_of(values, DEFAULTS, **fields)


def position_table(positions: int, d_model: int) -> Tensor:
    """PE(pos, i) = sin(pos / 10000^(2i/d_model)) in the first half, cos(same) in the second.

    Computed in float64, returned as float32 [positions, d_model]; the sines have the odd column.
    """
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000.0**exponent
    return torch.cat([angle.sin(), angle.cos()[:, : d_model // 2]], dim=-1).float()


def add_positions(weights: Weights, config: ModelConfig) -> None:
    """The tables, where a checkpoint leaves them out."""
    for stack, positions in (
        ("encoder", config.max_source_positions),
        ("decoder", config.max_target_positions),
    ):
        if POSITIONS[stack] not in weights:
            weights[POSITIONS[stack]] = position_table(positions, config.d_model)


def _complete(weights: Weights, config: ModelConfig) -> list[str]:
    add_positions(weights, config)
    add_logits_bias(weights, config)
    return tie(weights, config)


MARIAN = Family("marian", "Marian, OPUS-MT", _config, weight_name, _complete)
