"""Pegasus (Zhang et al. 2020): pre-norm, sinusoidal positions, a bias on the logits."""

from __future__ import annotations

from dragoman.reference_model import ModelConfig

from .bart import add_logits_bias, config_of, tie, weight_name
from .family import Family, Values, Weights
from .marian import add_positions


def _config(values: Values) -> ModelConfig:
    return config_of(
        values,
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        norm_order="pre",
        logits_bias=True,
    )


def _complete(weights: Weights, config: ModelConfig) -> list[str]:
    add_positions(weights, config)
    add_logits_bias(weights, config)
    return tie(weights, config)


PEGASUS = Family("pegasus", "Pegasus", _config, weight_name, _complete)
