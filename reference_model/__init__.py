"""The Transformer of "Attention Is All You Need" in PyTorch: the definition of correct output.

Reading order: config, attention, layers, embedding, stacks; generation; the models made of them:
transformer, language_model (a decoder alone), heads and encoder_model (an encoder alone); decoding,
beam_search, checkpoint, training.
"""

from typing import TYPE_CHECKING

from .lazy import lazy_attributes

if TYPE_CHECKING:
    from .attention import scaled_dot_product_attention
    from .beam_search import Hypothesis, beam_search_uncached
    from .checkpoint import load_checkpoint, load_weights, save_checkpoint
    from .config import ModelConfig
    from .decoding import AutoregressiveModel, KeyValueCache, greedy_cached, greedy_uncached
    from .encoder_model import EncoderModel
    from .errors import CheckpointError, ConfigError
    from .generation import GenerationConfig, Speech
    from .head_config import HeadConfig
    from .language_model import LanguageModel
    from .layers import KeysValues
    from .models import ReferenceModel, make_model
    from .presets import PRESETS, preset
    from .stacks import Memory, NoMemory
    from .transformer import Source, Transformer, as_batch, pad
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "attention": ("scaled_dot_product_attention",),
            "beam_search": ("Hypothesis", "beam_search_uncached"),
            "checkpoint": ("load_checkpoint", "load_weights", "save_checkpoint"),
            "config": ("ModelConfig",),
            "decoding": (
                *("AutoregressiveModel", "KeyValueCache", "greedy_cached", "greedy_uncached"),
            ),
            "encoder_model": ("EncoderModel",),
            "errors": ("CheckpointError", "ConfigError"),
            "generation": ("GenerationConfig", "Speech"),
            "head_config": ("HeadConfig",),
            "language_model": ("LanguageModel",),
            "layers": ("KeysValues",),
            "models": ("ReferenceModel", "make_model"),
            "presets": ("PRESETS", "preset"),
            "stacks": ("Memory", "NoMemory"),
            "transformer": ("Source", "Transformer", "as_batch", "pad"),
        },
    )

__all__ = [
    "PRESETS",
    "AutoregressiveModel",
    "CheckpointError",
    "ConfigError",
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
    "Speech",
    "Transformer",
    "as_batch",
    "beam_search_uncached",
    "greedy_cached",
    "greedy_uncached",
    "load_checkpoint",
    "load_weights",
    "make_model",
    "pad",
    "preset",
    "save_checkpoint",
    "scaled_dot_product_attention",
]
