"""Pegasus (Zhang et al. 2020): pre-norm, sinusoidal positions, a bias on the logits."""

from __future__ import annotations

from dragoman.reference_model import ModelConfig

from ..formats.json_files import Values
from ..tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ..tokenizers.readers import library_file, sentencepiece_file
from .bart import config_of, weight_name
from .family import Family
from .marian import computed_weights, convert_weights


def _config(values: Values) -> ModelConfig:
    return config_of(
        values,
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        norm_order="pre",
        logits_bias=True,
    )


def _pieces(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read SentencePiece pieces, which follow the special tokens of pre-training."""
    offset = checkpoint.setting("offset", int) or 103
    return sentencepiece_file(checkpoint, "spiece.model", offset=offset)


TOKENIZER = TokenizerKind(("PegasusTokenizer",), (library_file, _pieces))
PEGASUS = Family(
    config=_config,
    weight_name=weight_name,
    convert_weights=convert_weights,
    tokenizers=(TOKENIZER,),
    computed_weights=computed_weights,
    summarizes=True,
)
