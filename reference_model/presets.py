"""Published sizes of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import ModelConfig
from .errors import ConfigError

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "max_source_positions": 128,
        "max_target_positions": 128,
    },
    "base": {},
    "big": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
}
"""Base and big of the paper's table 3, and a model small enough for tests."""


def preset(
    name: str, *, source_vocab_size: int, target_vocab_size: int, **changes: Any
) -> ModelConfig:
    """A preset's configuration for these vocabulary sizes.

    Args:
        changes: fields that replace the preset's

    Raises:
        ConfigError: the preset is unknown (lists those there are), or the result is invalid.
    """
    if name not in PRESETS:
        raise ConfigError([f"unknown preset {name!r}, expected one of {', '.join(PRESETS)}"])
    return ModelConfig(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        **{**PRESETS[name], **changes},
    )
