"""mBART-25 (Liu et al. 2020) and mBART-50 (Tang et al. 2020): a multilingual, pre-norm BART."""
# ruff: noqa: SIM905

from __future__ import annotations

from functools import partial

from dragoman.reference_model import ModelConfig

from ..formats.json_files import Values
from ..tokenizers import TokenizerKind
from ..tokenizers.classes import CLASSES
from ..tokenizers.kind import library_file
from ..tokenizers.multilingual import Multilingual, fairseq_pieces, multilingual_library_file
from .bart import (
    SETTINGS,
    TABLES,
    config_of,
    convert_weights,
    no_logits_bias,
    weight_name,
    with_separate_tables,
)
from .family import Family

CODES_25 = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV
my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
""".split()

CODES_50 = [
    *CODES_25,
    *"""
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX
sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
""".split(),
]

CODE_PATTERN = "[a-z]{2}_[A-Z]{2}"
LANGUAGES_25 = Multilingual(CODES_25, CODE_PATTERN, source="suffix", target="start")
LANGUAGES_50 = Multilingual(CODES_50, CODE_PATTERN, source="prefix", target="first")

VOCAB_SIZE_50 = 250_054
"""The vocabulary size of mBART-50; mBART-25 has fewer languages and thus fewer tokens."""


def _config(values: Values) -> ModelConfig:
    return config_of(
        values,
        {"decoder_start_token_id": None},
        embedding_norm=True,
        logits_bias=True,
        norm_order="pre",
    )


def _tokenizer(name: str, languages: Multilingual, min_vocab_size: int) -> TokenizerKind:
    pieces = partial(fairseq_pieces, languages=languages, kind=CLASSES[name])
    return TokenizerKind(
        (name,),
        (
            partial(multilingual_library_file, languages=languages),
            pieces,
        ),
        languages,
        matches=lambda checkpoint: checkpoint.vocab_size >= min_vocab_size,
    )


TOKENIZERS = (
    _tokenizer("MBart50Tokenizer", LANGUAGES_50, VOCAB_SIZE_50),
    _tokenizer("MBartTokenizer", LANGUAGES_25, 0),
    TokenizerKind(("BarthezTokenizer",), (library_file,)),  # French-only models
)
MBART = Family(
    config=_config,
    weight_name=weight_name,
    convert_weights=convert_weights,
    tokenizers=TOKENIZERS,
    computed_weights=no_logits_bias,
    adjust_config=with_separate_tables,
    settings=SETTINGS,
    tables=TABLES,
)
