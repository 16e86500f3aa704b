"""T5 and FLAN-T5 (Raffel et al. 2020; Chung et al. 2022), mT5 (Xue et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dragoman.errors import shown
from dragoman.reference_model import ModelConfig

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerKind
from ..tokenizers.classes import T5 as T5_CLASS
from ..tokenizers.kind import library_file, sentencepiece_file
from .family import Family, activation, make_config, merge_tied, renamed, with_defaults

# The models have pre-norm with RMSNorm, no biases, and relative positions. T5 1.1, FLAN-T5 and mT5
# have gated feed-forward layers and an untied output projection. Two factors are folded into
# weights: attention scores are not divided by sqrt(d_head), and the first T5 multiplies the input
# of the output projection by d_model^-0.5.
#
# The weights determine whether the output projection is tied: if it is missing or equal. For T5,
# `scale_decoder_outputs` (in older files `tie_word_embeddings`) states whether the input is scaled.
# mT5 never scales it.

DEFAULT_POSITIONS = 2048
"""Maximum length of source and target, unless `n_positions` is larger. No table limits it, since
all distances beyond `relative_attention_max_distance` share a bucket. But the encoder's memory
grows with the square of the length: at 2048, the position bias of one source takes 0.5 GiB with 32
heads. T5 was trained on 512 tokens."""

FIELDS: Mapping[str, str] = {
    "source_vocab_size": "vocab_size",
    "target_vocab_size": "vocab_size",
    "encoder_layers": "num_layers",
    "d_model": "d_model",
    "num_heads": "num_heads",
    "d_head": "d_kv",
    "d_ff": "d_ff",
    "relative_buckets": "relative_attention_num_buckets",
    "relative_max_distance": "relative_attention_max_distance",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout": "dropout_rate",
    "pad_token_id": "pad_token_id",
    "end_token_id": "eos_token_id",
}
"""Fields of `ModelConfig`, with their names in `config.json`."""

T5_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32128,
    "num_layers": 6,
    "d_model": 512,
    "num_heads": 8,
    "d_kv": 64,
    "d_ff": 2048,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "dropout_rate": 0.1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "feed_forward_proj": "relu",
}
MT5_DEFAULTS: Mapping[str, Any] = {
    **T5_DEFAULTS,
    "vocab_size": 250112,
    "num_layers": 8,
    "num_heads": 6,
    "d_ff": 1024,
    "feed_forward_proj": "gated-gelu",
}
"""Defaults of missing fields of `config.json`."""

SETTINGS = frozenset(
    {
        *(*FIELDS.values(), *T5_DEFAULTS, "num_decoder_layers", "dense_act_fn", "is_gated_act"),
        *("n_positions", "decoder_start_token_id", "scale_decoder_outputs"),
    }
)
"""Fields of `config.json` that T5 reads."""

SHARED, OUTPUT = "shared.weight", "lm_head.weight"
TABLES = [SHARED, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
"""Names of the shared token embedding; a file has one or several of them."""

UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""A weight of the first published files that no implementation reads."""

PARTS: Mapping[str, str] = {
    "encoder.embedding.tokens": "shared",
    "relative_positions.table": "block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "coder.norm.gain": "coder.final_layer_norm.weight",
    ".layers.": ".block.",
    ".self_attention_residual.norm.gain": ".layer.0.layer_norm.weight",
    ".cross_attention_residual.norm.gain": ".layer.1.layer_norm.weight",
    ".self_attention.": ".layer.0.SelfAttention.",
    ".cross_attention.": ".layer.1.EncDecAttention.",
    ".query.": ".q.",
    ".key.": ".k.",
    ".value.": ".v.",
    ".output.": ".o.",
    ".feed_forward.gate.": ".feed_forward.wi_0.",
    ".feed_forward.inner.": ".feed_forward.wi.",
    ".feed_forward.outer.": ".feed_forward.wo.",
    ".feed_forward.": ".DenseReluDense.",
    ".feed_forward_residual.norm.gain": ".layer_norm.weight",
}
"""Parts of a parameter's name in `Transformer`, replaced in this order."""


def _weight_name(name: str) -> str:
    """Return a name; `wi_1` of a gated feed-forward is named as `wi` of an ungated one."""
    if name == "output.weight":
        return OUTPUT
    sublayer = "2" if name.startswith("decoder.") else "1"
    for part in ("feed_forward.", "feed_forward_residual."):
        name = name.replace(f".{part}", f".layer.{sublayer}.{part}")
    return renamed(name, PARTS)


def _config(values: Values, defaults: Mapping[str, Any]) -> ModelConfig:
    known = with_defaults(values, defaults)
    problems: list[str] = []
    projection = known["feed_forward_proj"]
    gate, dash, function = projection.rpartition("-") if isinstance(projection, str) else [""] * 3
    if not function or (dash and gate != "gated"):
        problems.append(
            f"feed_forward_proj: expected ACTIVATION or gated-ACTIVATION, found {shown(projection)}"
        )
    # In T5 1.1, gated-gelu means GELU's approximation by tanh.
    known.setdefault(
        "dense_act_fn", "gelu_new" if (gate, function) == ("gated", "gelu") else function
    )
    positions = known.get("n_positions", 0)
    if not isinstance(positions, int):
        problems.append(f"n_positions: expected an integer, found {shown(positions)}")
        positions = 0
    positions = max(DEFAULT_POSITIONS, positions)
    return make_config(
        problems,
        **{ours: known[theirs] for ours, theirs in FIELDS.items()},
        decoder_layers=known.get("num_decoder_layers", known["num_layers"]),
        activation=activation(known, "dense_act_fn", "relu", problems),
        gated_feed_forward=known.get("is_gated_act", gate == "gated"),
        norm_order="pre",
        norm="rms",
        norm_bias=False,
        query_bias=False,
        key_bias=False,
        value_bias=False,
        attention_output_bias=False,
        feed_forward_bias=False,
        tie_source_target=True,
        scale_embedding=False,
        positions="relative",
        max_source_positions=positions,
        max_target_positions=positions,
        start_token_id=known.get("decoder_start_token_id", known["pad_token_id"]),
    )


def _adjust_config(
    values: Values, config: ModelConfig, weights: Weights, scales_output: Callable[[Values], bool]
) -> ModelConfig:
    """Tie the output projection to the token embedding if it is missing or equal."""
    if scales_output(values):
        _scale(weights, _weight_name("decoder.norm.gain"), config.d_model**-0.5)
    output = weights.get(OUTPUT)
    tables = [weights[name] for name in TABLES if name in weights]
    tied = output is None or not tables or output.equal(tables[0])
    return config.replace(tie_target_output=tied)


def _t5_scales_output(values: Values) -> bool:
    stated = values.get("scale_decoder_outputs")
    return values.get("tie_word_embeddings") is not False if stated is None else bool(stated)


def _convert_weights(weights: Weights, config: ModelConfig) -> list[str]:
    weights.pop(UNUSED, None)
    for name in list(weights):
        if name.endswith("Attention.q.weight"):
            _scale(weights, name, math.sqrt(config.head_size))
        elif config.gated_feed_forward and name.endswith(".wi_1.weight"):
            weights[name.replace(".wi_1.", ".wi.")] = weights.pop(name)
    return merge_tied(weights, [*TABLES, *[OUTPUT] * config.tie_target_output])


def _scale(weights: Weights, name: str, factor: float) -> None:
    if name in weights and weights[name].is_floating_point():
        weights[name] = weights[name].float() * factor


TOKENIZER = TokenizerKind(
    ("T5Tokenizer", "MT5Tokenizer"),
    (library_file, partial(sentencepiece_file, file_name="spiece.model", kind=T5_CLASS)),
)
T5 = Family(
    config=partial(_config, defaults=T5_DEFAULTS),
    weight_name=_weight_name,
    convert_weights=_convert_weights,
    tokenizers=(TOKENIZER,),
    adjust_config=partial(_adjust_config, scales_output=_t5_scales_output),
    settings=SETTINGS,
    tables=(*TABLES, OUTPUT),
)
MT5 = replace(
    T5,
    config=partial(_config, defaults=MT5_DEFAULTS),
    adjust_config=partial(_adjust_config, scales_output=lambda values: False),
)
