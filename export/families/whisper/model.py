"""The model of Whisper and Distil-Whisper: a pre-norm BART whose encoder takes log-mel features.

Positions are stored on both sides, and keys have no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.reference_model import ModelConfig

from ...formats.json_files import Values
from ...formats.tensor_files import Weights
from ..bart import config_of
from ..bart import weight_name as bart_weight_name
from ..family import merge_tied, renamed

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "d_model": 384,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "dropout": 0.0,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "pad_token_id": 50256,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "decoder_start_token_id": 50257,
}
"""Values for fields that a `config.json` leaves out."""

CONVOLUTIONS: Mapping[str, str] = {
    "embedding.first_convolution": "conv1",
    "embedding.second_convolution": "conv2",
}
OUTPUT = "proj_out.weight"
TOKENS = "model.decoder.embed_tokens.weight"


def weight_name(name: str) -> str:
    """The name that a checkpoint gives a parameter of `Transformer`."""
    return OUTPUT if name == "output.weight" else bart_weight_name(renamed(name, CONVOLUTIONS))


def config(values: Values) -> ModelConfig:
    """The configuration that a `config.json` describes."""
    known = {**DEFAULTS, **{name: v for name, v in values.items() if v is not None}}
    return config_of(
        values,
        DEFAULTS,
        source_vocab_size=None,
        feature_size=known["num_mel_bins"],
        tie_source_target=False,
        norm_order="pre",
        scale_embedding=False,  # Hugging Face ignores the field
        key_bias=False,
        max_source_positions=known["max_source_positions"],
        max_target_positions=known["max_target_positions"],
    )


def complete(weights: Weights, config: ModelConfig) -> list[str]:
    """Keep one name for the token embedding and the output projection that reuses it."""
    return merge_tied(weights, [TOKENS, OUTPUT]) if config.tie_target_output else []
