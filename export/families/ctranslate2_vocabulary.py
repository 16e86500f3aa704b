"""The vocabularies beside a CTranslate2 model: ids of its special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.reference_model import CheckpointError

from .ctranslate2_file import ModelFile
from .speech import MULTILINGUAL_SIZE

Vocabulary = list[str]


@dataclass(frozen=True)
class TextTokens:
    """Attributes:
    source_size, target_size: tokens of each vocabulary
    pad: a token of both vocabularies; CTranslate2 has none, and masks what it fills up
    start: what decoding starts from; the end token where each input states it (mBART-25)
    """

    source_size: int
    target_size: int
    pad: int
    start: int
    end: int


@dataclass(frozen=True)
class WhisperTokens:
    """Token ids of Whisper (Radford et al. 2022, figure 1).

    Attributes:
        languages: by their codes, such as "en"; empty of a model for English only
        transcribe, translate: the tasks; None of a model for English only
        first_timestamp: 0.00 seconds; every token from it on is a time, in steps of 0.02 seconds
    """

    start: int
    end: int
    languages: Mapping[str, int]
    transcribe: int | None
    translate: int | None
    no_timestamps: int
    first_timestamp: int


def text_tokens(directory: Path, file: ModelFile, values: Mapping[str, Any]) -> TextTokens:
    """The special tokens of a model for text.

    Args:
        values: of config.json; files before version 6 state the same themselves

    Raises:
        CheckpointError: a vocabulary is missing or damaged, or has no such token.
    """
    shared = read_vocabulary(directory, "shared_vocabulary")
    source = shared or read_vocabulary(directory, "source_vocabulary")
    target = shared or read_vocabulary(directory, "target_vocabulary")
    if source is None or target is None:
        raise CheckpointError(
            directory,
            [
                "expected shared_vocabulary.json, or source_vocabulary.json and "
                "target_vocabulary.json (or .txt), found none"
            ],
        )
    settings = values if file.version >= 6 else _settings(file)
    end, start = settings.get("eos_token", "</s>"), settings.get("decoder_start_token", "<s>")
    start, end = _ids(directory, target, end if start is None else start, end)
    both = range(min(len(source), len(target)))
    padding = (source.index(token) for token in ("<pad>", "<blank>") if token in source)
    pad = next((token for token in padding if token in both), end if end in both else 0)
    return TextTokens(len(source), len(target), pad, start, end)


def _settings(file: ModelFile) -> dict[str, Any]:
    """What files before version 6 state as variables."""
    begin, end = file.texts.get("bos_token", "<s>"), file.texts.get("eos_token", "</s>")
    start = begin if file.options.get("with_target_bos", 1) else end
    return {
        "eos_token": end,
        "decoder_start_token": None if file.options.get("user_decoder_start_tokens") else start,
    }


def whisper_tokens(directory: Path) -> WhisperTokens:
    """The special tokens of a Whisper model.

    Raises:
        CheckpointError: the vocabulary is missing or damaged, or has no such tokens.
    """
    vocabulary = read_vocabulary(directory, "vocabulary")
    if vocabulary is None:
        raise CheckpointError(
            directory, ["expected vocabulary.json or vocabulary.txt, found neither"]
        )
    start, end, translate, transcribe, no_timestamps, first = _ids(
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
    multilingual = len(vocabulary) >= MULTILINGUAL_SIZE
    return WhisperTokens(
        start=start,
        end=end,
        languages=languages if multilingual else {},
        transcribe=transcribe if multilingual else None,
        translate=translate if multilingual else None,
        no_timestamps=no_timestamps,
        first_timestamp=first,
    )


def _ids(directory: Path, vocabulary: Vocabulary, *tokens: str) -> list[int]:
    missing = [f"expected the token {t!r} in the vocabulary" for t in tokens if t not in vocabulary]
    if missing:
        raise CheckpointError(directory, missing)
    return [vocabulary.index(token) for token in tokens]


def read_vocabulary(directory: Path, name: str) -> Vocabulary | None:
    """The tokens of `name`.json or `name`.txt in the order of their ids; None if there is neither.

    Raises:
        CheckpointError: it cannot be read or is no list of tokens.
    """
    in_json, in_lines = directory / f"{name}.json", directory / f"{name}.txt"
    path = in_json if in_json.is_file() else in_lines
    if not path.is_file():
        return None
    try:
        text = path.read_bytes().decode()
        tokens = json.loads(text) if path == in_json else text.removesuffix("\n").split("\n")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, [f"expected a list of tokens: {error}"]) from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(path, ["expected a list of tokens"])
    # Written on Windows; otherwise a token may well end so.
    windows = path == in_lines and all(token.endswith("\r") for token in tokens)
    return [token[:-1] for token in tokens] if windows else tokens
