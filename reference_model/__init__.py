"""The Transformer of "Attention Is All You Need" in PyTorch: the definition of right.

Reading order: config, attention, layers, embedding, generation, transformer, decoding, checkpoint,
training.
"""

from .attention import scaled_dot_product_attention
from .checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint
from .config import PRESETS, ConfigError, ModelConfig, preset
from .decoding import KeyValueCache, Source, as_batch, greedy_cached, greedy_uncached, pad
from .generation import GenerationConfig, Speech
from .layers import KeysValues
from .transformer import Memory, NoMemory, Transformer

__all__ = [
    "PRESETS",
    "CheckpointError",
    "ConfigError",
    "GenerationConfig",
    "KeyValueCache",
    "KeysValues",
    "Memory",
    "ModelConfig",
    "NoMemory",
    "Source",
    "Speech",
    "Transformer",
    "as_batch",
    "greedy_cached",
    "greedy_uncached",
    "load_checkpoint",
    "load_weights",
    "pad",
    "preset",
    "save_checkpoint",
    "scaled_dot_product_attention",
]
