"""Whisper (Radford et al. 2022), Distil-Whisper: pre-norm, mel features in, positions of both sides
stored, keys without bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.reference_model import ModelConfig

from .bart import config_of
from .bart import weight_name as bart_weight_name
from .family import Family, Values, Weights, merge_tied, renamed

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
"""What a `config.json` that is silent means."""

CONVOLUTIONS: Mapping[str, str] = {
    "embedding.first_convolution": "conv1",
    "embedding.second_convolution": "conv2",
}
OUTPUT = "proj_out.weight"
TOKENS = "model.decoder.embed_tokens.weight"


def weight_name(name: str) -> str:
    """What a checkpoint calls a parameter of `Transformer`."""
    return OUTPUT if name == "output.weight" else bart_weight_name(renamed(name, CONVOLUTIONS))


def _config(values: Values) -> ModelConfig:
    known = {**DEFAULTS, **{name: v for name, v in values.items() if v is not None}}
    return config_of(
        values,
        DEFAULTS,
        source_vocab_size=None,
        feature_size=known["num_mel_bins"],
        tie_source_target=False,
        norm_order="pre",
        scale_embedding=False,  # Hugging Face does not heed the field
        key_bias=False,
        max_source_positions=known["max_source_positions"],
        max_target_positions=known["max_target_positions"],
    )


def _complete(weights: Weights, config: ModelConfig) -> list[str]:
    return merge_tied(weights, [TOKENS, OUTPUT]) if config.tie_target_output else []


WHISPER = Family("whisper", "Whisper, Distil-Whisper", _config, weight_name, _complete)
