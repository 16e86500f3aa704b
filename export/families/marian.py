"""Marian (Junczys-Dowmunt et al. 2018), the family of OPUS-MT, and Pegasus (Zhang et al. 2020).

Both have sinusoidal positions in Marian's order of columns and a bias on the logits. Marian is
post-norm, Pegasus pre-norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.reference_model import ModelConfig
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import PieceModel, TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ..tokenizers.classes import PEGASUS as PEGASUS_CLASS
from ..tokenizers.files import all_present, check_has_tokens, read_vocabulary
from ..tokenizers.kind import library_file, sentencepiece_file
from ..tokenizers.settings import added_pieces, read_settings
from .bart import (
    POSITIONS,
    SETTINGS,
    TABLES,
    config_of,
    flatten_logits_bias,
    no_logits_bias,
    tie,
    weight_name,
    with_separate_tables,
)
from .family import ComputedWeights, Family

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 58101,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "decoder_start_token_id": 58100,
}


def _config(values: Values) -> ModelConfig:
    shared = values.get("share_encoder_decoder_embeddings", True)
    fields: dict[str, Any] = {"tie_source_target": shared, "logits_bias": True}
    if shared is False and values.get("decoder_vocab_size") is not None:
        fields["target_vocab_size"] = values["decoder_vocab_size"]
    return config_of(values, DEFAULTS, **fields)


def position_table(positions: int, d_model: int) -> Tensor:
    """Compute sin(position / 10000^(2i/d_model)) in the first half of the columns, then cosines.

    The table [positions, d_model] is computed in float64, returned in float32. An odd d_model has
    one more column of sines than of cosines.
    """
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000.0**exponent
    return torch.cat([angle.sin(), angle.cos()[:, : d_model // 2]], dim=-1).float()


def _computed_weights(config: ModelConfig) -> ComputedWeights:
    source, target = config.max_source_positions, config.max_target_positions
    return {
        POSITIONS["encoder"]: lambda: position_table(source, config.d_model),
        POSITIONS["decoder"]: lambda: position_table(target, config.d_model),
        **no_logits_bias(config),
    }


def _convert_weights(weights: Weights, config: ModelConfig) -> list[str]:
    flatten_logits_bias(weights)
    return tie(weights, config)


DEFAULT_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""Special tokens of checkpoints that state none."""


def _sentencepiece_pair(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read a SentencePiece model for each side, and one or two vocabularies of their pieces."""
    directory = checkpoint.directory
    if not all_present(directory, "source.spm", "target.spm", "vocab.json"):
        return None
    path, target_path = directory / "vocab.json", directory / "target_vocab.json"
    if checkpoint.setting("separate_vocabs", bool):
        all_present(directory, path.name, target_path.name)
        vocabulary = read_vocabulary(path, checkpoint.source_vocab_size)
        target_vocabulary = read_vocabulary(target_path, checkpoint.target_vocab_size)
    else:
        vocabulary = read_vocabulary(path, checkpoint.vocab_size)
        target_vocabulary = vocabulary
    end = checkpoint.special("eos", "</s>")
    unknown = checkpoint.special("unk", "<unk>")
    special = {end, unknown, checkpoint.special("pad", "<pad>")}
    check_has_tokens(path, vocabulary, end, unknown)
    added = added_pieces(read_settings(directory, None), vocabulary, DEFAULT_TOKENS)
    source, target = (
        PieceModel(
            directory / name,
            {piece: token for piece, token in pieces.items() if piece not in special},
            pieces.get(unknown),
            leading_code=True,
            added=added,
        )
        for name, pieces in (("source.spm", vocabulary), ("target.spm", target_vocabulary))
    )
    for side in (source, target):
        load_sentencepiece(side.model)
    template = SourceTemplate((), (vocabulary[end],))
    return TokenizerFiles(source, target, template, cleans_up=checkpoint.cleans_up(source))


TOKENIZER = TokenizerKind(("MarianTokenizer",), (_sentencepiece_pair, library_file))
MARIAN = Family(
    config=_config,
    weight_name=weight_name,
    convert_weights=_convert_weights,
    tokenizers=(TOKENIZER,),
    computed_weights=_computed_weights,
    settings=SETTINGS | {"share_encoder_decoder_embeddings", "decoder_vocab_size"},
    tables=TABLES,
)


PEGASUS_TOKENIZER = TokenizerKind(
    ("PegasusTokenizer",),
    (library_file, partial(sentencepiece_file, file_name="spiece.model", kind=PEGASUS_CLASS)),
)
PEGASUS = replace(
    MARIAN,
    config=partial(
        config_of,
        defaults={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        norm_order="pre",
        logits_bias=True,
    ),
    tokenizers=(PEGASUS_TOKENIZER,),
    summarizes=True,
    adjust_config=with_separate_tables,
    settings=SETTINGS,
)
