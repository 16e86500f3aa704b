"""What CTranslate2's specifications call weights, and how they stack them.

Products of one input are stacked: query, key and value of self-attention, key and value of
cross-attention. A part of a stack is named `.../weight (query)` here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .ctranslate2_file import ModelFile
from .family import Weights, renamed

SOURCE_TABLE = "encoder/embeddings_0/weight"
TARGET_TABLE = "decoder/embeddings/weight"
PROJECTION = "decoder/projection/weight"
LOGITS_BIAS = "decoder/projection/bias"

PARTS: Mapping[str, str] = {
    "encoder.embedding.tokens.weight": SOURCE_TABLE,
    "decoder.embedding.tokens.weight": TARGET_TABLE,
    "embedding.first_convolution": "conv1",
    "embedding.second_convolution": "conv2",
    "embedding.positions.table": "position_encodings/encodings",
    "embedding.norm": "layernorm_embedding",
    "self_attention_residual.norm": "self_attention/layer_norm",
    "cross_attention_residual.norm": "attention/layer_norm",
    "feed_forward_residual.norm": "ffn/layer_norm",
    "coder.norm": "coder/layer_norm",
    "cross_attention": "attention",
    "feed_forward.outer": "ffn/linear_1",
    "layers.": "layer_",
    "gain": "gamma",
    "norm.bias": "norm/beta",
    "embedding.bias": "embedding/beta",
    ".": "/",
}
"""Parts of a parameter's name in `Transformer`, to be replaced in this order."""

STACKS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("self_attention", "linear_0"): ("query", "key", "value"),
    ("self_attention", "linear_1"): ("output",),
    ("attention", "linear_0"): ("query",),
    ("attention", "linear_1"): ("key", "value"),
    ("attention", "linear_2"): ("output",),
}
"""What is stacked in each product of an attention."""

KNOWN_OPTIONS = {
    "pre_norm",
    "activation",
    "num_heads",
    "head_dim",
    "scale_embeddings",
    "multiply_by_sqrt_depth",
    "start_from_zero_embedding",
    "with_source_bos",
    "with_source_eos",
    "with_target_bos",
    "user_decoder_start_tokens",
    # These change nothing here: alignments, what belongs to options that are off, and what the
    # weights say, too.
    "alignment_layer",
    "alignment_heads",
    "alibi_use_positive_positions",
    "scale_alibi",
    "embeddings_merge",
    "layernorm_embedding",
}
"""Any other that is not zero is refused."""

UNSUPPORTED = re.compile(
    r"relative_\w+|rotary_\w+|(original_)?max_position_embeddings|[qkv]_norm|project_(in|out)"
    r"|memory_kv|layer_scalar|queries_scale|scale_outputs|final_logit_softcapping"
    r"|(shared|input|\w+_attention|\w+_feedforward)_layer_norm|embeddings_[1-9]\d*"
)
"""Parts of names that are there only in models of another kind."""

_ATTENTION = re.compile(r"(.*/)?(self_attention|attention)/(linear_\d)/(weight|bias)")
_OURS = re.compile(r"(.*/(self_attention|attention))/(query|key|value|output)/(weight|bias)")


def unsupported_options(file: ModelFile) -> list[str]:
    """Problems: an option that makes a model one of another kind, each once."""
    found: dict[str, str] = {}
    for name in (*file.weights, *file.options):
        parts = name.split("/")
        for part in filter(UNSUPPORTED.fullmatch, parts):
            found.setdefault(part, name)
        value = file.options.get(name)
        # As many heads of keys and values as of queries are nothing unusual.
        usual = parts[-1] == "num_heads_kv" and value == file.options.get(f"{parts[0]}/num_heads")
        if value and parts[-1] not in KNOWN_OPTIONS and not usual:
            found.setdefault(parts[-1], name)
    return [f"unsupported option {option} ({name})" for option, name in found.items()]


def weight_name(name: str, *, gated: bool) -> str:
    """What `model.bin` calls a parameter of `Transformer`.

    Args:
        gated: whether feed-forward layers have two products of their input, of which the first has
            the activation
    """
    if name.startswith("output."):
        return name.replace("output.", "decoder/projection/")
    name = name.replace("feed_forward.gate", "ffn.linear_0")
    name = name.replace("feed_forward.inner", "ffn.linear_0_noact" if gated else "ffn.linear_0")
    name = renamed(name, PARTS)
    ours = _OURS.fullmatch(name)
    if ours is None:
        return name
    scope, kind, role, tensor = ours.groups()
    linear = next(linear for (k, linear), roles in STACKS.items() if k == kind and role in roles)
    return _part(f"{scope}/{linear}/{tensor}", role, STACKS[kind, linear])


def _part(name: str, role: str, roles: tuple[str, ...]) -> str:
    return f"{name} ({role})" if len(roles) > 1 else name


def split_stacks(weights: Weights) -> list[str]:
    """Replace stacks by their parts; gives what cannot be split."""
    problems = []
    for name in list(weights):
        match = _ATTENTION.fullmatch(name)
        roles = STACKS.get((match[2], match[3]), ()) if match else ()
        if len(roles) < 2:
            continue
        stack = weights.pop(name)
        if stack.dim() == 0 or len(stack) % len(roles):
            problems.append(
                f"{name} must hold {', '.join(roles)} of one size, found {list(stack.shape)}"
            )
            continue
        for role, part in zip(roles, stack.chunk(len(roles)), strict=True):
            weights[_part(name, role, roles)] = part
    return problems


def biased(weights: Weights) -> dict[str, bool]:
    """Which products have a bias, after `split_stacks`: fields of `ModelConfig`.

    In `weights` those that have one anywhere have it everywhere then, of zeros, and the others
    nowhere: a stack has zeros for the parts that had none.
    """
    fields = {}
    for field, products in _products(weights).items():
        biases = {name: name.replace("/weight", "/bias") for name in products}
        given = [weights[bias] for bias in biases.values() if bias in weights]
        fields[field] = any(bool(bias.any()) for bias in given)
        for name, bias in biases.items():
            if not fields[field]:
                weights.pop(bias, None)
            elif bias not in weights:
                weights[bias] = torch.zeros(len(weights[name]))
    return fields


def _products(weights: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """The names of weights by the field that says whether they have a bias."""
    products: dict[str, list[str]] = {f"{role}_bias": [] for role in ("query", "key", "value")}
    products |= {"attention_output_bias": [], "feed_forward_bias": [], "logits_bias": []}
    for name in weights:
        if (field := _bias_field(name)) is not None:
            products[field].append(name)
    return products


def _bias_field(name: str) -> str | None:
    plain, _, role = name.removesuffix(")").partition(" (")
    if not plain.endswith("/weight"):
        return None
    if plain == PROJECTION:
        return "logits_bias"
    if "/ffn/linear_" in plain:
        return "feed_forward_bias"
    match = _ATTENTION.fullmatch(plain)
    roles = STACKS.get((match[2], match[3])) if match else None
    if roles is None:
        return None
    role = role or roles[0]
    return "attention_output_bias" if role == "output" else f"{role}_bias"
