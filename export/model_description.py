"""A reference model's configuration -> the description of the model in a bundle's manifest."""

from __future__ import annotations

import dataclasses

from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    GenerationConfig,
    ModelConfig,
    ReferenceModel,
)
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.settings.generation_settings import GenerationSettings
from dragoman.settings.head import Head
from dragoman.settings.speech import AudioFeatures, SpeechTokens

DEFAULT_MAX_NEW_TOKENS = 256


def model_spec(config: ModelConfig) -> ModelSpec:
    """Return the sizes and special tokens that the runtime needs."""
    decodes = config.has_decoder
    return ModelSpec(
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        decoder_layers=config.decoder_layers,
        num_heads=config.num_heads,
        head_size=config.head_size,
        max_source_positions=config.max_source_positions,
        max_target_positions=config.max_target_positions,
        pad_token_id=config.pad_token_id,
        start_token_id=config.start_token_id if decodes else 0,
        end_token_id=config.end_token_id if decodes else 0,
        value_size=None if config.value_size == config.head_size else config.value_size,
        state_size=config.d_model if config.is_recurrent else None,
    )


def head(config: ModelConfig) -> Head | None:
    """Return the head of an encoder-only model; None for a model with a decoder."""
    if config.head is None:
        return None
    head_config = config.head
    match head_config.task:
        case "embedding":
            outputs = head_config.truncate_dim or head_config.embedding_size(config.d_model)
        case "masked-language-model":
            outputs = config.source_vocab_size or 0
        case "question-answering":
            outputs = 2
        case _:
            outputs = len(head_config.labels)
    return Head(
        head_config.task,
        outputs,
        config.d_model,
        token_types=config.token_types if config.token_types > 1 else 0,
        labels=head_config.labels,
        multi_label=head_config.multi_label,
        mask_token_id=head_config.mask_token_id
        if head_config.task == "masked-language-model"
        else None,
    )


def audio_features(config: ModelConfig) -> AudioFeatures | None:
    """Return the audio features of a speech model; None for a text model."""
    if config.feature_size is None:
        return None
    usual = AudioFeatures(config.feature_size)
    seconds = config.feature_frames * usual.hop / usual.sampling_rate
    return AudioFeatures(config.feature_size, chunk_seconds=seconds)


def generation_settings(generation: GenerationConfig) -> GenerationSettings:
    """Return a model's generation settings for a manifest."""
    names = [field.name for field in dataclasses.fields(GenerationSettings)]
    return GenerationSettings(**{name: getattr(generation, name) for name in names})


def speech_tokens(model: AutoregressiveModel) -> SpeechTokens | None:
    """Return the prompt tokens of a speech model; None for a text model."""
    if model.config.feature_size is None:
        return None
    return model.generation.speech or SpeechTokens()


def default_max_new_tokens(model: ReferenceModel) -> int:
    """Return the model's limit, or that of its positions; 0 for an encoder-only model."""
    if isinstance(model, EncoderModel):
        return 0
    room = model.config.max_target_positions - len(model.generation.prompt)
    return min(model.generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS, room)
