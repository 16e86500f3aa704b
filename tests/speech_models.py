"""Whisper models with seeded random weights, and what Hugging Face makes of them.

Of a small vocabulary: text, then special tokens, then times. A window is a second.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

transformers: Any = importlib.import_module("transformers")

TEXT = 60
LANGUAGES = ("en", "de", "fr", "haw")
POSITIONS = 50
TIMES = POSITIONS + 1
RATE = 16_000


@dataclass(frozen=True)
class Vocabulary:
    """Token ids in Whisper's order: text, the end, the start, languages, tasks, others, times."""

    multilingual: bool

    @property
    def names(self) -> list[str]:
        languages = LANGUAGES if self.multilingual else LANGUAGES[:1]
        special = ["endoftext", "startoftranscript", *languages, "translate", "transcribe"]
        special += ["startoflm", "startofprev", "nospeech", "notimestamps"]
        special += [f"{step * 0.02:.2f}" for step in range(TIMES)]
        return [*(f" w{i}" for i in range(TEXT)), *(f"<|{name}|>" for name in special)]

    def __getitem__(self, name: str) -> int:
        return self.names.index(f"<|{name}|>")

    @property
    def size(self) -> int:
        return len(self.names)


def tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    words = {name: i for i, name in enumerate(vocabulary.names)}
    made = Tokenizer(models.WordLevel(words, " w0"))
    made.add_tokens([AddedToken(n, special="." not in n) for n in vocabulary.names[TEXT:]])
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    made.decoder = decoders.Fuse()
    return made


@torch.no_grad()
def whisper(
    *,
    multilingual: bool,
    seed: int = 1,
    bins: int = 80,
    settings: dict[str, Any] | None = None,
    **shape: Any,
) -> Any:
    """A model whose output depends on what it hears, with the generation settings that published
    ones have."""
    vocabulary = Vocabulary(multilingual)
    end, start = vocabulary["endoftext"], vocabulary["startoftranscript"]
    config = transformers.WhisperConfig(
        vocab_size=vocabulary.size,
        num_mel_bins=bins,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        **{
            "d_model": 24,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 3,
            "decoder_attention_heads": 3,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "max_source_positions": POSITIONS,
            "max_target_positions": 30,
        }
        | shape,
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        wide = 3.4 if "q_proj" in name or "k_proj" in name else 1.3
        if parameter.dim() == 1:
            noise = torch.randn(parameter.shape)
            parameter.copy_(noise if "norm.weight" in name else noise * 0.1)
        else:
            fan_in = parameter[0].numel()
            parameter.copy_(torch.randn(parameter.shape) * wide * fan_in**-0.5)
    # Times are chosen where they are asked for, and hardly ever where not: there, two of 0.00 s in
    # a row would keep Hugging Face at one place for ever.
    model.model.decoder.embed_tokens.weight[vocabulary["notimestamps"] :] *= 0.35
    model.generation_config = generation(vocabulary, config.max_target_positions, settings or {})
    return model


def generation(vocabulary: Vocabulary, positions: int, settings: dict[str, Any]) -> Any:
    """As in published checkpoints, which state language and task only as forced tokens."""
    names = ("translate", "transcribe", "startoflm", "startofprev", "nospeech")
    several: dict[str, Any] = {"is_multilingual": False, "forced_decoder_ids": None}
    if vocabulary.multilingual:
        several = {
            "is_multilingual": True,
            "forced_decoder_ids": [[1, None], [2, vocabulary["transcribe"]]],
            "lang_to_id": {f"<|{code}|>": vocabulary[code] for code in LANGUAGES},
            "task_to_id": {task: vocabulary[task] for task in names[:2]},
        }
    end = vocabulary["endoftext"]
    return transformers.GenerationConfig(
        **{
            "max_length": positions,
            "max_initial_timestamp_index": 20,
            "no_timestamps_token_id": vocabulary["notimestamps"],
            "suppress_tokens": [
                1,
                7,
                vocabulary["startoftranscript"],
                *map(vocabulary.__getitem__, names),
            ],
            "begin_suppress_tokens": [3, end],
            "decoder_start_token_id": vocabulary["startoftranscript"],
            "bos_token_id": end,
            "eos_token_id": end,
            "pad_token_id": end,
            "return_timestamps": False,
        }
        | several
        | settings
    )


def save(model: Any, directory: Path) -> Path:
    """A checkpoint as people download it."""
    model.save_pretrained(directory)
    vocabulary = Vocabulary(bool(model.generation_config.is_multilingual))
    tokenizer(vocabulary).save(str(directory / "tokenizer.json"))
    extractor(model).save_pretrained(directory)
    return directory


def extractor(model: Any) -> Any:
    return transformers.WhisperFeatureExtractor(
        feature_size=model.config.num_mel_bins, chunk_length=model.config.max_source_positions // 50
    )


def noise(seconds: float, seed: int) -> NDArray[np.float32]:
    """Audio whose loudness and pitch wander."""
    generator = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    pitch = 200 * np.exp(2 * np.sin(2 * np.pi * time * generator.uniform(0.5, 3)))
    signal = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * np.sin(7 * time + seed)
    return (0.2 * signal + 0.02 * generator.standard_normal(len(time))).astype(np.float32)


MODELS = {
    "english": lambda: whisper(multilingual=False, seed=3),
    "multilingual": lambda: whisper(
        multilingual=True,
        seed=5,
        bins=128,
        d_model=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_target_positions=37,
    ),
    "distilled": lambda: whisper(
        multilingual=True,
        seed=7,
        d_model=42,
        encoder_layers=3,
        decoder_layers=1,
        encoder_ffn_dim=19,
        decoder_ffn_dim=19,
        scale_embedding=True,
    ),
}
"""English alone and several languages; 80 and 128 mel bins; fewer layers than the encoder has."""


def their_segments(model: Any, audio: NDArray[np.float32], **settings: Any) -> list[dict[str, Any]]:
    """What `generate` of Hugging Face gives: a window is padded with silence, what is longer is
    not. Windows that begin in the padding are left out."""
    padding = "longest" if len(audio) > RATE else "max_length"
    features = extractor(model)(
        audio, sampling_rate=RATE, return_tensors="pt", truncation=False, padding=padding
    )
    output = model.generate(features.input_features, return_segments=True, **settings)
    segments: list[dict[str, Any]] = output["segments"][0]
    times = model.generation_config.no_timestamps_token_id + 1
    ends = (
        number
        for number, segment in enumerate(segments, 1)
        if min(segment["tokens"][-2:], default=0) >= times
        and round(float(segment["end"]) * 100) >= len(audio) // 160
    )
    return segments[: next(ends, None)]


def their_tokens(model: Any, audio: NDArray[np.float32], **settings: Any) -> list[int]:
    segments = their_segments(model, audio, **settings)
    return [int(token) for segment in segments for token in segment["tokens"]]
