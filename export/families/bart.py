"""BART (Lewis et al. 2020), mBART, and the names and fields that their relatives share.

mBART-25 (Liu et al. 2020) and mBART-50 (Tang et al. 2020) are multilingual and pre-norm. In Hugging
Face, mBART, Marian, M2M100, NLLB, Pegasus and Whisper descend from BART: they share names of
weights and fields, and differ in positions and norms.
"""

# ruff: noqa: SIM905

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tokenizers import processors

from dragoman.errors import shown
from dragoman.reference_model import ModelConfig

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ..tokenizers.classes import CLASSES, ROBERTA
from ..tokenizers.files import check_has_tokens
from ..tokenizers.kind import byte_level, library_file
from ..tokenizers.multilingual import Multilingual, fairseq_pieces, multilingual_library_file
from ..tokenizers.tiktoken import tokenizer_of_ranks
from .encoders.family import classifier
from .family import (
    ComputedWeights,
    Family,
    activation,
    make_config,
    merge_tied,
    renamed,
    with_defaults,
)

PARTS: Mapping[str, str] = {
    "embedding.tokens": "embed_tokens",
    "embedding.positions.table": "embed_positions.weight",
    "embedding.norm": "layernorm_embedding",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "coder.norm": "coder.layer_norm",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".output.": ".out_proj.",
    ".gain": ".weight",
}
"""Parts of a parameter's name in `Transformer`, replaced in this order."""

HEAD_PARTS: Mapping[str, str] = {
    "head.dense.linear": "classification_head.dense",
    "head.output": "classification_head.out_proj",
}
"""The same for the head of `EncoderModel`."""

LOGITS_BIAS = "final_logits_bias"
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
TOKENS = {stack: f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
TABLES = (SHARED, *TOKENS.values(), OUTPUT)
POSITIONS = {stack: f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}

FIELDS: Mapping[str, str] = {
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "d_model": "d_model",
    "num_heads": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
    "dropout": "dropout",
    "scale_embedding": "scale_embedding",
    "source_vocab_size": "vocab_size",
    "target_vocab_size": "vocab_size",
    "max_source_positions": "max_position_embeddings",
    "max_target_positions": "max_position_embeddings",
    "pad_token_id": "pad_token_id",
    "end_token_id": "eos_token_id",
}
"""Fields of `ModelConfig`, with their names in `config.json`."""

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50265,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "activation_function": "gelu",
    "dropout": 0.1,
    "scale_embedding": False,
    "max_position_embeddings": 1024,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
"""BART's defaults of missing fields of `config.json`."""

SETTINGS = frozenset({*FIELDS.values(), *DEFAULTS})
"""Fields of `config.json` that BART and its relatives read."""


def weight_name(name: str) -> str:
    """Return the name that a checkpoint gives a parameter of `Transformer`."""
    if name == "output.bias":
        return LOGITS_BIAS
    if name == "output.weight":
        return OUTPUT
    if name.startswith("head."):
        return renamed(name, HEAD_PARTS)
    return f"model.{renamed(name, PARTS)}"


def config_of(values: Values, defaults: Mapping[str, Any], **fields: Any) -> ModelConfig:
    """Make the configuration that a `config.json` describes.

    Defaults are those that differ from BART's; the family determines the fields.
    """
    known = with_defaults(values, {**DEFAULTS, **defaults})
    problems = [
        f"encoder_{name} and decoder_{name} must be equal, found {shown(encoder)} and "
        f"{shown(decoder)}"
        for name in ("attention_heads", "ffn_dim")
        if (encoder := known[f"encoder_{name}"]) != (decoder := known[f"decoder_{name}"])
    ]
    tied = known.get("tie_word_embeddings", True)
    start = {**DEFAULTS, **defaults, **values}["decoder_start_token_id"]
    return make_config(
        problems,
        **{ours: known[theirs] for ours, theirs in FIELDS.items()}
        | {
            "activation": activation(known, "activation_function", "gelu", problems),
            "start_token_id": known["bos_token_id"] if start is None else start,
            "tie_source_target": True,
            "tie_target_output": tied,
            "positions": "learned",
        }
        | fields,
    )


def tie(weights: Weights, config: ModelConfig) -> list[str]:
    """Keep one name for each token embedding and the output projection that reuses it."""
    names = [TOKENS["encoder"], SHARED] if config.tie_source_target else []
    output = [OUTPUT] if config.tie_target_output else []
    return merge_tied(weights, [*names, TOKENS["decoder"], *output])


def with_separate_tables(values: Values, config: ModelConfig, weights: Weights) -> ModelConfig:
    """Untie the tables of encoder and decoder if they differ.

    With `tie_word_embeddings` false, transformers 5 ties nothing, and a side uses the shared table
    only if the checkpoint lacks that side's.
    """
    if config.tie_target_output or not config.tie_source_target:
        return config
    stored = {name: name if name in weights else SHARED for name in TOKENS.values()}
    tables = {name: weights[found] for name, found in stored.items() if found in weights}
    if len(tables) < len(TOKENS) or torch.equal(*tables.values()):
        return config
    weights.pop(SHARED, None)
    weights |= tables
    return config.replace(tie_source_target=False)


def flatten_logits_bias(weights: Weights) -> None:
    """Reshape the bias, which is stored as [1, V], to [V]."""
    bias = weights.get(LOGITS_BIAS)
    if bias is not None and bias.dim() == 2 and len(bias) == 1:
        weights[LOGITS_BIAS] = bias[0]


def no_logits_bias(config: ModelConfig) -> ComputedWeights:
    """Return zeros for a bias that a checkpoint lacks."""
    return {LOGITS_BIAS: lambda: torch.zeros(config.target_vocab_size)}


def _convert_weights(weights: Weights, config: ModelConfig) -> list[str]:
    """Cut tables of positions to begin at their third row, as in fairseq; tie the embeddings."""
    for name in POSITIONS.values():
        if name in weights and weights[name].dim() == 2:
            weights[name] = weights[name][2:]
    for name in ("model.encoder.version", "model.decoder.version"):
        weights.pop(name, None)
    flatten_logits_bias(weights)
    return tie(weights, config)


_config = partial(config_of, defaults={}, embedding_norm=True, logits_bias=True)


def _classifier_config(values: Values) -> ModelConfig:
    """Make the configuration of BartForSequenceClassification."""
    # Its ids of special tokens are those of `_config`, which checks them as those of a decoder.
    config = _config(values)
    values = {"num_labels": 3, **values}  # the default of BART, not that of other families
    return config.replace(
        target_vocab_size=0,
        max_target_positions=0,
        logits_bias=False,
        head=classifier(values, config.d_model, "tanh"),
    )


def _merges(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read byte-level pair encoding, with the tokens `cls` and `sep` around a text."""
    tokenizer = byte_level(checkpoint, ROBERTA)
    if tokenizer is not None:
        return TokenizerFiles(tokenizer, tokenizer)
    tokenizer = tokenizer_of_ranks(checkpoint)
    if tokenizer is None:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    begin, end = checkpoint.special("cls", "<s>"), checkpoint.special("sep", "</s>")
    check_has_tokens(checkpoint.directory, vocabulary, end, begin)
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (begin, vocabulary[begin]), add_prefix_space=False
    )
    return TokenizerFiles(tokenizer, tokenizer)


TOKENIZER = TokenizerKind(
    ("BartTokenizer", "RobertaTokenizer"), (library_file, _merges), any_class=True
)
BART = Family(
    config=_config,
    weight_name=weight_name,
    convert_weights=_convert_weights,
    tokenizers=(TOKENIZER,),
    adjust_config=with_separate_tables,
    computed_weights=no_logits_bias,
    classifier=_classifier_config,
    summarizes=True,
    settings=SETTINGS,
    tables=TABLES,
)


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


def _of_languages(name: str, languages: Multilingual, min_vocab_size: int) -> TokenizerKind:
    return TokenizerKind(
        (name,),
        (
            partial(multilingual_library_file, languages=languages),
            partial(fairseq_pieces, languages=languages, kind=CLASSES[name]),
        ),
        languages,
        matches=lambda checkpoint: checkpoint.vocab_size >= min_vocab_size,
    )


MBART_TOKENIZERS = (
    _of_languages("MBart50Tokenizer", LANGUAGES_50, VOCAB_SIZE_50),
    _of_languages("MBartTokenizer", LANGUAGES_25, 0),
    TokenizerKind(("BarthezTokenizer",), (library_file,)),  # French-only models
)
MBART = replace(
    BART,
    config=partial(
        config_of,
        defaults={"decoder_start_token_id": None},
        embedding_norm=True,
        logits_bias=True,
        norm_order="pre",
    ),
    tokenizers=MBART_TOKENIZERS,
    classifier=None,
    summarizes=False,
)
