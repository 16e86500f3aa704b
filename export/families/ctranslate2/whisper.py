"""Whisper models of CTranslate2, and the special tokens of their vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import shown
from dragoman.reference_model import CheckpointError, GenerationConfig
from dragoman.settings.speech import SpeechTokens

from ...formats.ctranslate2 import read_vocabulary
from ...formats.json_files import Values
from ...tokenizers import TokenizerFiles
from ...tokenizers.files import LIBRARY_FILE, read_library_file
from ..whisper import MULTILINGUAL_VOCAB_SIZE, hide_timestamps, with_prompt
from .stored_model import NO_ROWS, TARGET_TABLE, Fields, Rows, Specification, StoredModel, token_ids

MAX_INITIAL_TIMESTAMP = 50
"""The value of all published Whisper models, in steps of 0.02 s; the conversion drops it."""


@dataclass(frozen=True)
class WhisperTokens:
    """Token ids of Whisper (Radford et al. 2022, figure 1)."""

    start: int
    end: int
    languages: Mapping[str, int]
    """Language tokens by code, such as "en"; empty for an English-only model."""
    transcribe: int | None
    translate: int | None
    """The tokens of both tasks; None for an English-only model."""
    no_timestamps: int
    first_timestamp: int
    """Token of 0.00 seconds; each later token adds 0.02 seconds."""


def whisper_tokens(directory: Path) -> WhisperTokens:
    """Find the special tokens of a Whisper model."""
    vocabulary = read_vocabulary(directory, "vocabulary")
    if vocabulary is None:
        raise CheckpointError(
            directory, ["expected vocabulary.json or vocabulary.txt, found neither"]
        )
    start, end, translate, transcribe, no_timestamps, first = token_ids(
        directory,
        vocabulary,
        "<|startoftranscript|>",
        "<|endoftext|>",
        "<|translate|>",
        "<|transcribe|>",
        "<|notimestamps|>",
        "<|0.00|>",
    )
    names = (re.fullmatch(r"<\|([a-z]{2,3})\|>", token) for token in vocabulary[start:translate])
    languages = {m[1]: start + i for i, m in enumerate(names) if m}
    multilingual = len(vocabulary) >= MULTILINGUAL_VOCAB_SIZE
    return WhisperTokens(
        start=start,
        end=end,
        languages=languages if multilingual else {},
        transcribe=transcribe if multilingual else None,
        translate=translate if multilingual else None,
        no_timestamps=no_timestamps,
        first_timestamp=first,
    )


def find_whisper_tokenizers(
    directory: Path, values: Values, rows: Rows = NO_ROWS
) -> TokenizerFiles | None:
    """Find the tokenizer of a Whisper model; None without `tokenizer.json`."""
    path = directory / LIBRARY_FILE
    if not path.exists():
        return None
    size = len(read_vocabulary(directory, "vocabulary") or [])
    return TokenizerFiles(None, hide_timestamps(read_library_file(path, size)))


def _describe(stored: StoredModel) -> tuple[Fields, GenerationConfig]:
    tokens = whisper_tokens(stored.directory)
    fields: Fields = {
        "source_vocab_size": None,
        "feature_size": stored.shape("encoder/conv1/weight", 3)[1],
        "start_token_id": tokens.start,
        "end_token_id": tokens.end,
        "pad_token_id": tokens.end,
        "scale_embedding": stored.scales_by_sqrt_depth(),
    }
    rules = GenerationConfig(
        suppressed_token_ids=_suppressed(stored, "suppress_ids"),
        first_suppressed_token_ids=_suppressed(stored, "suppress_ids_begin"),
    )
    tasks = {"transcribe": tokens.transcribe, "translate": tokens.translate}
    speech = SpeechTokens(
        languages=dict(tokens.languages),
        tasks={name: token for name, token in tasks.items() if token is not None},
        no_timestamps_token_id=tokens.no_timestamps,
        max_initial_timestamp_index=MAX_INITIAL_TIMESTAMP,
        default_task=None if tokens.transcribe is None else "transcribe",
    )
    positions = stored.shape("decoder/position_encodings/encodings", 2)[0]
    return fields, with_prompt(rules, speech, positions)


def _suppressed(stored: StoredModel, name: str) -> tuple[int, ...]:
    size = stored.shape(TARGET_TABLE, 2)[0]
    ids = stored.values.get(name) or []
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
        stored.problems.append(f"{name}: expected token ids in [0, {size}), found {shown(ids)}")
        return ()
    return tuple(sorted(set(ids)))


WHISPER = Specification(range(1, 4), ("decoder",), _describe, find_whisper_tokenizers)
