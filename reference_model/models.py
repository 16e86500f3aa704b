"""A configuration -> the model that it describes."""

from __future__ import annotations

from .config import ModelConfig
from .encoder_model import EncoderModel
from .generation import GenerationConfig
from .language_model import LanguageModel
from .transformer import Transformer

ReferenceModel = Transformer | LanguageModel | EncoderModel


def make_model(config: ModelConfig, generation: GenerationConfig | None = None) -> ReferenceModel:
    """A model with random weights: encoder and decoder, or the one that the configuration has."""
    if not config.has_decoder:
        return EncoderModel(config)
    if not config.has_encoder:
        return LanguageModel(config, generation)
    return Transformer(config, generation)
