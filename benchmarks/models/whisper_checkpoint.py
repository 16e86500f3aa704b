"""Converts Whisper from CTranslate2's format to Hugging Face's, which other tools need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .shapes import stacks

if TYPE_CHECKING:
    from dragoman.reference_model import GenerationConfig, ModelConfig

TOKENIZER = "tokenizer.json"
TOKENIZER_SETTINGS = {
    "tokenizer_class": "WhisperTokenizer",
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
}


def whisper_checkpoint(source: Path, directory: Path) -> Path:
    """Write the same weights, tokenizer and generation settings as a checkpoint of Hugging Face.

    It is written once, as `whisper-checkpoint` next to `directory`, for all contenders.

    Args:
        source: directory of a Whisper model in CTranslate2's format, with `tokenizer.json`

    Raises:
        DragomanError: the source cannot be read.
    """
    from dragoman.runtime.format.writing import new_directory

    checkpoint = directory.with_name("whisper-checkpoint")
    if not checkpoint.exists():
        with new_directory(checkpoint) as unfinished:
            _write(source, unfinished)
    return checkpoint


def _write(source: Path, directory: Path) -> None:
    from dragoman.export.checkpoints import read_checkpoint
    from dragoman.export.families import FAMILIES
    from dragoman.reference_model import Transformer

    from .random_checkpoint import write_checkpoint

    model = read_checkpoint(source).model
    assert isinstance(model, Transformer)
    rename = FAMILIES["whisper"].weight_name
    weights = {rename(name): value.detach() for name, value in model.named_parameters()}
    write_checkpoint(
        directory,
        weights,
        config=_config(model.config),
        generation_config=_generation(model.config, model.generation),
        preprocessor_config=_features(model.config),
        tokenizer_config=TOKENIZER_SETTINGS,
    )
    shutil.copyfile(source / TOKENIZER, directory / TOKENIZER)


def _config(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": config.target_vocab_size,
        "num_mel_bins": config.feature_size,
        **stacks(config.d_model, config.encoder_layers, config.num_heads, config.d_ff),
        "decoder_layers": config.decoder_layers,
        "max_source_positions": config.max_source_positions,
        "max_target_positions": config.max_target_positions,
        "activation_function": "gelu",
        "scale_embedding": config.scale_embedding,
        "tie_word_embeddings": True,
        **_tokens(config),
    }


def _generation(config: ModelConfig, rules: GenerationConfig) -> dict[str, Any]:
    speech = rules.speech
    assert speech is not None
    multilingual = {
        "lang_to_id": {f"<|{code}|>": token for code, token in speech.languages.items()},
        "task_to_id": dict(speech.tasks),
        "language": speech.default_language,
        "task": speech.default_task,
    }
    return {
        **_tokens(config),
        "suppress_tokens": list(rules.suppressed_token_ids),
        "begin_suppress_tokens": list(rules.first_suppressed_token_ids),
        "no_timestamps_token_id": speech.no_timestamps_token_id,
        "max_initial_timestamp_index": speech.max_initial_timestamp_index,
        "alignment_heads": [list(head) for head in rules.alignment_heads],
        "max_length": config.max_target_positions,
        "return_timestamps": False,
        "is_multilingual": bool(speech.languages),
        **(multilingual if speech.languages else {}),
    }


def _tokens(config: ModelConfig) -> dict[str, Any]:
    return {
        "decoder_start_token_id": config.start_token_id,
        "bos_token_id": config.end_token_id,
        "eos_token_id": config.end_token_id,
        "pad_token_id": config.pad_token_id,
    }


def _features(config: ModelConfig) -> dict[str, Any]:
    from dragoman.export.model_description import audio_features

    features = audio_features(config)
    assert features is not None
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": features.bins,
        "sampling_rate": features.sampling_rate,
        "n_fft": features.n_fft,
        "hop_length": features.hop,
        "chunk_length": round(features.chunk_seconds),
        "n_samples": features.samples,
        "nb_max_frames": features.frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
