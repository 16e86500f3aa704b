"""The `config.json` of checkpoints with random weights, in Hugging Face's fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .shapes import SHAPES, Shape


def config_of(shape: str, *, vocab_size: int | None = None) -> dict[str, Any]:
    """Of a text model.

    Args:
        shape: a key of `SHAPES`
        vocab_size: None: the shape's own
    """
    sizes = SHAPES[shape]
    return CONFIGS[sizes.family](sizes, vocab_size or sizes.vocab_size)


def _marian(sizes: Shape, vocab_size: int) -> dict[str, Any]:
    return _common(sizes, vocab_size) | {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "decoder_vocab_size": vocab_size,
        "share_encoder_decoder_embeddings": True,
        "scale_embedding": True,
    }


def _bart(sizes: Shape, vocab_size: int) -> dict[str, Any]:
    return _common(sizes, vocab_size) | {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "scale_embedding": False,
    }


def _common(sizes: Shape, vocab_size: int) -> dict[str, Any]:
    """The end token is the first of the vocabulary; padding and start are the last."""
    pad = vocab_size - 1
    return {
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "encoder_layers": sizes.layers,
        "decoder_layers": sizes.layers,
        "d_model": sizes.d_model,
        "encoder_attention_heads": sizes.heads,
        "decoder_attention_heads": sizes.heads,
        "encoder_ffn_dim": sizes.d_ff,
        "decoder_ffn_dim": sizes.d_ff,
        "activation_function": sizes.activation,
        "max_position_embeddings": sizes.positions,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }


CONFIGS: dict[str, Callable[[Shape, int], dict[str, Any]]] = {"marian": _marian, "bart": _bart}

WHISPER_TINY_EN = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "vocab_size": 51864,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "d_model": 384,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "activation_function": "gelu",
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "pad_token_id": 50256,
    "decoder_start_token_id": 50257,
}
"""Of Whisper tiny.en."""

WHISPER_GENERATION = {
    "is_multilingual": False,
    "no_timestamps_token_id": 50362,
    "max_new_tokens": 32,
}
"""What Whisper tiny.en's `generation_config.json` has besides tokens; of random weights, every
output is as long as it may be."""
