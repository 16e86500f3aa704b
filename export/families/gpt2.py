"""GPT-2 (Radford et al. 2019), a decoder-only model, in every size, and DistilGPT2."""

from collections.abc import Mapping
from typing import Any

from dragoman.errors import shown
from dragoman.reference_model import ModelConfig

from ..formats.json_files import Values
from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ..tokenizers.classes import GPT2 as GPT2_CLASS
from ..tokenizers.kind import byte_level, library_file
from .family import Family, activation, make_config, merge_tied, renamed, with_defaults
from .generation import SettingsReader

FIELDS: Mapping[str, str] = {
    "target_vocab_size": "vocab_size",
    "decoder_layers": "n_layer",
    "d_model": "n_embd",
    "num_heads": "n_head",
    "max_target_positions": "n_positions",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "end_token_id": "eos_token_id",
}
"""Fields of `ModelConfig`, with their names in `config.json`."""

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50257,
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "activation_function": "gelu_new",
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
"""GPT-2's defaults of missing fields of `config.json`."""

NEUTRAL: Mapping[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""Unsupported options, with the values that switch them off."""

SETTINGS = frozenset({*FIELDS.values(), *DEFAULTS, *NEUTRAL, "n_inner"})
"""Fields of `config.json` that GPT-2 reads."""

PARTS: Mapping[str, str] = {
    "decoder.embedding.tokens": "wte",
    "decoder.embedding.positions.table": "wpe.weight",
    "decoder.layers": "h",
    "decoder.norm": "ln_f",
    "self_attention_residual.norm": "ln_1",
    "feed_forward_residual.norm": "ln_2",
    "self_attention.output": "attn.c_proj",
    "self_attention": "attn",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
    ".gain": ".weight",
}
PREFIX = "transformer."
OUTPUT = "lm_head.weight"
CONV1D = (".c_attn", ".c_proj", ".c_fc")
"""Modules whose weights are stored as [in, out]."""
PACKED = ("query", "key", "value")
"""The projections that `c_attn` stacks; their names follow its own."""


def _weight_name(name: str) -> str:
    name = OUTPUT if name == "output.weight" else renamed(name, PARTS)
    part = name.split(".")[-2]
    return f"{name.replace(part, 'c_attn')}[{part}]" if part in PACKED else name


def _convert_weights(weights: Weights, config: ModelConfig) -> list[str]:
    """Transpose projections, which are stored as [in, out], and split query, key and value."""
    for name in list(weights):
        weight = weights[name]
        if name.startswith(PREFIX):
            del weights[name]
            name = name.removeprefix(PREFIX)
            weights[name] = weight
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            del weights[name]  # the causal mask in older files
        elif name.removesuffix(".weight").endswith(CONV1D):
            weights[name] = weight.t().contiguous() if weight.dim() == 2 else weight
    for name in [n for n in weights if n.endswith((".c_attn.weight", ".c_attn.bias"))]:
        weight = weights[name]
        if len(weight) == len(PACKED) * config.d_model:
            del weights[name]
            for part, of_part in zip(PACKED, weight.chunk(len(PACKED)), strict=True):
                weights[f"{name}[{part}]"] = of_part.contiguous()
    tied = [_weight_name("decoder.embedding.tokens.weight")]
    return merge_tied(weights, [*tied, OUTPUT] if config.tie_target_output else tied)


def _config(values: Values) -> ModelConfig:
    known = with_defaults(values, DEFAULTS)
    problems = [
        f"{name}: expected {neutral}, found {shown(known[name])}"
        for name, neutral in NEUTRAL.items()
        if known.get(name, neutral) != neutral
    ]
    stated = values.get("architectures") or ["GPT2LMHeadModel"]
    if not isinstance(stated, list) or stated[0] not in ("GPT2LMHeadModel", "GPT2Model"):
        problems.append(f'architectures: expected ["GPT2LMHeadModel"], found {shown(stated)}')
    width = SettingsReader(known, problems).number("n_embd", DEFAULTS["n_embd"], least=1)
    fields = {ours: known[theirs] for ours, theirs in FIELDS.items()} | {"d_model": width}
    return make_config(
        problems,
        **fields
        | {
            "source_vocab_size": 0,
            "encoder_layers": 0,
            "max_source_positions": 0,
            "d_ff": known.get("n_inner", 4 * width),
            "activation": activation(known, "activation_function", "gelu_new", problems),
            "norm_order": "pre",
            "positions": "learned",
            "scale_embedding": False,
            "tie_target_output": known.get("tie_word_embeddings", True),
            "start_token_id": known["bos_token_id"],
            "pad_token_id": 0,
        },
    )


def _merges(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    tokenizer = byte_level(checkpoint, GPT2_CLASS)
    return None if tokenizer is None else TokenizerFiles(tokenizer, tokenizer)


TOKENIZER = TokenizerKind(("GPT2Tokenizer",), (library_file, _merges), any_class=True)
GPT2 = Family(
    config=_config,
    weight_name=_weight_name,
    convert_weights=_convert_weights,
    tokenizers=(TOKENIZER,),
    has_encoder=False,
    settings=SETTINGS,
    tables=("wte.weight", OUTPUT),
    transposed=CONV1D,
)
