"""Models of CTranslate2 that translate text, and the special tokens of their vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.reference_model import CheckpointError, GenerationConfig

from ...formats.ctranslate2 import ModelFile
from ...formats.detection import CONFIG_FILE
from ...formats.tensor_files import Weights
from ..m2m_100.model import check_width, position_table
from .reading import Fields, Reading, Specification, merge_equal, token_ids
from .text_tokenizers import find_text_tokenizers, read_vocabularies
from .weights import LOGITS_BIAS, PROJECTION, SOURCE_TABLE, TARGET_TABLE, Rows

COMPUTED_POSITIONS = 1024
"""How many positions are computed if none are stored; CTranslate2 computes as many as it needs."""


@dataclass(frozen=True)
class TextTokens:
    """The special tokens of a text model, and the sizes of its vocabularies.

    Attributes:
        source_size, target_size: the number of tokens of each vocabulary
        pad: a token of both vocabularies; CTranslate2 masks padding and has no token for it
        start: decoding starts from it; the end token if each input states its own (mBART-25)
    """

    source_size: int
    target_size: int
    pad: int
    start: int
    end: int


def text_tokens(
    directory: Path, file: ModelFile, values: Mapping[str, Any], rows: Rows
) -> TextTokens:
    """The special tokens of a text model.

    Args:
        values: fields of `config.json`; files before version 6 state them as variables
        rows: of the tables of tokens

    Raises:
        CheckpointError: a vocabulary is missing or damaged, or lacks a special token.
    """
    settings = values if file.version >= 6 else _settings(file)
    unknown = settings.get("unk_token", "<unk>")
    if not isinstance(unknown, str):
        raise CheckpointError(
            directory / CONFIG_FILE, [f"unk_token: expected a string, found {unknown!r:.40}"]
        )
    source, target = read_vocabularies(directory, rows, unknown)
    if source is None or target is None:
        raise CheckpointError(
            directory,
            [
                "expected shared_vocabulary.json, or source_vocabulary.json and "
                "target_vocabulary.json (or .txt), found none"
            ],
        )
    end, start = settings.get("eos_token", "</s>"), settings.get("decoder_start_token", "<s>")
    start, end = token_ids(directory, target, end if start is None else start, end)
    both = range(min(len(source), len(target)))
    padding = (source.index(token) for token in ("<pad>", "<blank>") if token in source)
    pad = next((token for token in padding if token in both), end if end in both else 0)
    return TextTokens(len(source), len(target), pad, start, end)


def _settings(file: ModelFile) -> dict[str, Any]:
    """The special tokens that files before version 6 state as variables."""
    begin, end = file.texts.get("bos_token", "<s>"), file.texts.get("eos_token", "</s>")
    start = begin if file.options.get("with_target_bos", 1) else end
    return {
        "unk_token": file.texts.get("unk_token", "<unk>"),
        "eos_token": end,
        "decoder_start_token": None if file.options.get("user_decoder_start_tokens") else start,
    }


def _describe(reading: Reading) -> tuple[Fields, GenerationConfig]:
    weights = reading.weights
    tokens = text_tokens(reading.directory, reading.file, reading.values, reading.rows)
    for table, size in ((SOURCE_TABLE, tokens.source_size), (TARGET_TABLE, tokens.target_size)):
        if (rows := reading.shape(table, 2)[0]) != size:
            reading.problems.append(
                f"{table} has {rows} rows and its vocabulary {size} tokens, expected equal numbers"
            )
    fields: Fields = {
        "start_token_id": tokens.start,
        "end_token_id": tokens.end,
        "pad_token_id": tokens.pad,
        "scale_embedding": reading.scales_by_sqrt_depth(),
    }
    rules = GenerationConfig()
    if reading.option("decoder", "start_from_zero_embedding", 0):
        fields["start_token_id"] = start = len(weights[TARGET_TABLE])
        rules = GenerationConfig(suppressed_token_ids=(start,))
        _add_zero_token(weights)
        if len(weights[SOURCE_TABLE]) > start:
            fields["pad_token_id"] = start
    d_model = reading.shape(TARGET_TABLE, 2)[1]
    for stack in ("encoder", "decoder"):
        name = f"{stack}/position_encodings/encodings"
        if name not in weights:
            check_width(d_model)
            weights[name] = position_table(1, COMPUTED_POSITIONS, d_model)
    fields["source_vocab_size"] = len(weights[SOURCE_TABLE])
    fields["tie_source_target"] = merge_equal(weights, SOURCE_TABLE, TARGET_TABLE)
    return fields, rules


def _add_zero_token(weights: Weights) -> None:
    """One more token, which is embedded as zeros, for decoding to start from.

    The conversion of a Marian model takes this token away.
    """
    names = [TARGET_TABLE, PROJECTION, LOGITS_BIAS]
    if weights[SOURCE_TABLE].equal(weights[TARGET_TABLE]):
        names.append(SOURCE_TABLE)
    for name in names:
        if name in weights:
            table = weights[name]
            weights[name] = torch.cat([table, table.new_zeros(1, *table.shape[1:])])


TEXT = Specification(range(2, 8), ("encoder", "decoder"), _describe, find_text_tokenizers)
