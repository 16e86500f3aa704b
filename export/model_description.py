"""A reference model's configuration -> the description of the model in a bundle's manifest."""

from __future__ import annotations

from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    GenerationConfig,
    ModelConfig,
    ReferenceModel,
)
from dragoman.runtime.format.audio import AudioFeatures
from dragoman.runtime.format.generation_settings import GenerationSettings
from dragoman.runtime.format.head import Head
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.speech import SpeechTokens

DEFAULT_MAX_NEW_TOKENS = 256


def model_spec(config: ModelConfig) -> ModelSpec:
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
    )


def head(config: ModelConfig) -> Head | None:
    """What an encoder alone gives; None for a model with a decoder."""
    if config.head is None:
        return None
    given = config.head
    match given.task:
        case "embedding":
            outputs = given.dense_size or config.d_model
        case "masked-language-model":
            outputs = config.source_vocab_size or 0
        case "question-answering":
            outputs = 2
        case _:
            outputs = len(given.labels)
    return Head(
        given.task,
        outputs,
        config.d_model,
        token_types=config.token_types,
        labels=given.labels,
        multi_label=given.multi_label,
        mask_token_id=given.mask_token_id if given.task == "masked-language-model" else None,
    )


def audio_features(config: ModelConfig) -> AudioFeatures | None:
    """How audio becomes the source of a speech model; None for a text model."""
    if config.feature_size is None:
        return None
    usual = AudioFeatures(config.feature_size)
    seconds = config.feature_frames * usual.hop / usual.sampling_rate
    return AudioFeatures(config.feature_size, chunk_seconds=seconds)


def generation_settings(generation: GenerationConfig) -> GenerationSettings:
    return GenerationSettings(
        prompt=generation.prompt,
        forced_first_token_id=generation.forced_first_token_id,
        forced_last_token_id=generation.forced_last_token_id,
        end_token_ids=generation.end_token_ids,
        suppressed_token_ids=generation.suppressed_token_ids,
        first_suppressed_token_ids=generation.first_suppressed_token_ids,
        bad_words=generation.bad_words,
        min_length=generation.min_length,
        min_new_tokens=generation.min_new_tokens,
        no_repeat_ngram_size=generation.no_repeat_ngram_size,
        encoder_no_repeat_ngram_size=generation.encoder_no_repeat_ngram_size,
        repetition_penalty=generation.repetition_penalty,
        num_beams=generation.num_beams,
        length_penalty=generation.length_penalty,
        early_stopping=generation.early_stopping,
        do_sample=generation.do_sample,
        temperature=generation.temperature,
        top_k=generation.top_k,
        top_p=generation.top_p,
        min_p=generation.min_p,
        alignment_heads=generation.alignment_heads,
    )


def speech_tokens(model: AutoregressiveModel) -> SpeechTokens | None:
    """What prompts of a speech model consist of; None for a text model."""
    if model.config.feature_size is None:
        return None
    speech = model.generation.speech
    if speech is None:
        return SpeechTokens()
    return SpeechTokens(
        languages=speech.languages,
        tasks=speech.tasks,
        no_timestamps_token_id=speech.no_timestamps_token_id,
        max_initial_timestamp_index=speech.max_initial_timestamp_index,
        default_language=speech.default_language,
        default_task=speech.default_task,
        default_timestamps=speech.default_timestamps,
    )


def default_max_new_tokens(model: ReferenceModel) -> int:
    """The publisher's limit, as far as the model's positions allow; 0 of an encoder alone."""
    if isinstance(model, EncoderModel):
        return 0
    room = model.config.max_target_positions - len(model.generation.prompt)
    return min(model.generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS, room)
