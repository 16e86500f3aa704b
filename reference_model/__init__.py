"""The Transformer of "Attention Is All You Need" in PyTorch: the definition of correct output.

Reading order: config, attention, layers, stacks, models; generation, decoding;
checkpoint, training, recipes.
"""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .attention import scaled_dot_product_attention
    from .checkpoint import load_checkpoint, load_weights, save_checkpoint
    from .config import PRESETS, ModelConfig, preset
    from .decoding import (
        Hypothesis,
        KeyValueCache,
        beam_search_uncached,
        greedy_cached,
        greedy_uncached,
        greedy_verified,
    )
    from .generation import GenerationConfig
    from .head_config import EmbeddingLayer, HeadConfig
    from .layers import GRU, SSRU, KeysValues
    from .models import (
        AutoregressiveModel,
        EncoderModel,
        LanguageModel,
        ReferenceModel,
        Source,
        Transformer,
        as_batch,
        make_model,
        pad,
    )
    from .settings import CheckpointError, ConfigError
    from .stacks import Memory, NoMemory
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "attention": ("scaled_dot_product_attention",),
            "checkpoint": ("load_checkpoint", "load_weights", "save_checkpoint"),
            "config": ("PRESETS", "ModelConfig", "preset"),
            "decoding": (
                *("Hypothesis", "KeyValueCache"),
                *("beam_search_uncached", "greedy_cached", "greedy_uncached", "greedy_verified"),
            ),
            "generation": ("GenerationConfig",),
            "head_config": ("EmbeddingLayer", "HeadConfig"),
            "layers": ("GRU", "SSRU", "KeysValues"),
            "models": (
                *("Transformer", "LanguageModel", "EncoderModel", "make_model"),
                *("AutoregressiveModel", "ReferenceModel", "Source", "as_batch", "pad"),
            ),
            "settings": ("CheckpointError", "ConfigError"),
            "stacks": ("Memory", "NoMemory"),
        },
    )

__all__ = [
    "GRU",
    "PRESETS",
    "SSRU",
    "AutoregressiveModel",
    "CheckpointError",
    "ConfigError",
    "EmbeddingLayer",
    "EncoderModel",
    "GenerationConfig",
    "HeadConfig",
    "Hypothesis",
    "KeyValueCache",
    "KeysValues",
    "LanguageModel",
    "Memory",
    "ModelConfig",
    "NoMemory",
    "ReferenceModel",
    "Source",
    "Transformer",
    "as_batch",
    "beam_search_uncached",
    "greedy_cached",
    "greedy_uncached",
    "greedy_verified",
    "load_checkpoint",
    "load_weights",
    "make_model",
    "pad",
    "preset",
    "save_checkpoint",
    "scaled_dot_product_attention",
]
