"""The Transformer of "Attention Is All You Need" in PyTorch: the definition of correct output.

Reading order: config, attention, layers, embedding, generation, transformer, decoding,
beam_search, checkpoint, training.
"""

from typing import TYPE_CHECKING

from .lazy import lazy_attributes

if TYPE_CHECKING:
    from .attention import scaled_dot_product_attention
    from .beam_search import Hypothesis, beam_search_uncached
    from .checkpoint import load_checkpoint, load_weights, save_checkpoint
    from .config import PRESETS, ModelConfig, preset
    from .decoding import KeyValueCache, Source, as_batch, greedy_cached, greedy_uncached, pad
    from .errors import CheckpointError, ConfigError
    from .generation import GenerationConfig, Speech
    from .layers import KeysValues
    from .transformer import Memory, NoMemory, Transformer
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "attention": ("scaled_dot_product_attention",),
            "beam_search": ("Hypothesis", "beam_search_uncached"),
            "checkpoint": ("load_checkpoint", "load_weights", "save_checkpoint"),
            "config": ("PRESETS", "ModelConfig", "preset"),
            "decoding": (
                *("KeyValueCache", "Source", "as_batch", "greedy_cached", "greedy_uncached"),
                "pad",
            ),
            "errors": ("CheckpointError", "ConfigError"),
            "generation": ("GenerationConfig", "Speech"),
            "layers": ("KeysValues",),
            "transformer": ("Memory", "NoMemory", "Transformer"),
        },
    )

__all__ = [
    "PRESETS",
    "CheckpointError",
    "ConfigError",
    "GenerationConfig",
    "Hypothesis",
    "KeyValueCache",
    "KeysValues",
    "Memory",
    "ModelConfig",
    "NoMemory",
    "Source",
    "Speech",
    "Transformer",
    "as_batch",
    "beam_search_uncached",
    "greedy_cached",
    "greedy_uncached",
    "load_checkpoint",
    "load_weights",
    "pad",
    "preset",
    "save_checkpoint",
    "scaled_dot_product_attention",
]
