"""Pegasus (Zhang et al. 2020): pre-norm, sinusoidal positions, a bias on the logits."""

from __future__ import annotations

from functools import partial

from dragoman.reference_model import ModelConfig

from ..formats.json_files import Values
from ..tokenizers import TokenizerKind
from ..tokenizers.classes import PEGASUS as PEGASUS_CLASS
from ..tokenizers.kind import library_file, sentencepiece_file
from .bart import SETTINGS, TABLES, config_of, weight_name, with_separate_tables
from .family import Family
from .marian import computed_weights, convert_weights


def _config(values: Values) -> ModelConfig:
    return config_of(
        values,
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        norm_order="pre",
        logits_bias=True,
    )


TOKENIZER = TokenizerKind(
    ("PegasusTokenizer",),
    (library_file, partial(sentencepiece_file, file_name="spiece.model", kind=PEGASUS_CLASS)),
)
PEGASUS = Family(
    config=_config,
    weight_name=weight_name,
    convert_weights=convert_weights,
    tokenizers=(TOKENIZER,),
    computed_weights=computed_weights,
    summarizes=True,
    adjust_config=with_separate_tables,
    settings=SETTINGS,
    tables=TABLES,
)
