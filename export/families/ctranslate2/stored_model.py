"""A partly read CTranslate2 model, the record of a kind of model, and the names of weights.

Projections of the same input are stacked: query, key and value of self-attention, key and value of
cross-attention. After splitting, a part of a stack is named `.../weight (query)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import shown
from dragoman.reference_model import CheckpointError, GenerationConfig

from ...formats.ctranslate2 import ModelFile, Vocabulary
from ...formats.detection import CTRANSLATE2_FILE
from ...formats.json_files import Values
from ...formats.tensor_files import Weights
from ...tokenizers import TokenizerFiles
from ..checkpoint import measure
from ..family import renamed

SOURCE_TABLE = "encoder/embeddings_0/weight"
TARGET_TABLE = "decoder/embeddings/weight"
TABLES = {"encoder": SOURCE_TABLE, "decoder": TARGET_TABLE}
Rows = Mapping[str, int]
"""The numbers of rows of the token tables, by stack; stacks without a table are missing."""
NO_ROWS: Rows = MappingProxyType({})

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
"""Parts of a parameter's name in `Transformer`, replaced in this order."""

STACKS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("self_attention", "linear_0"): ("query", "key", "value"),
    ("self_attention", "linear_1"): ("output",),
    ("attention", "linear_0"): ("query",),
    ("attention", "linear_1"): ("key", "value"),
    ("attention", "linear_2"): ("output",),
}
"""The parts that are stacked in each projection of an attention."""

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
    # Ignored: alignments, details of unused options, and values that the weights show.
    "alignment_layer",
    "alignment_heads",
    "alibi_use_positive_positions",
    "scale_alibi",
    "embeddings_merge",
    "layernorm_embedding",
}
"""Supported options; any other option must be zero."""

UNSUPPORTED = re.compile(
    r"relative_\w+|rotary_\w+|(original_)?max_position_embeddings|[qkv]_norm|project_(in|out)"
    r"|memory_kv|layer_scalar|queries_scale|scale_outputs|final_logit_softcapping"
    r"|(shared|input|\w+_attention|\w+_feedforward)_layer_norm|embeddings_[1-9]\d*"
)
"""Parts of names that occur only in models of other architectures."""

FIRST_REVISION: Mapping[str, str] = {
    "transformer/": "",
    ":0": "",
    "w_embs": "embeddings/weight",
    "kernel": "weight",
    "LayerNorm": "layer_norm",
    "dense": "projection",
    "conv1d_": "linear_",
    "conv1d": "linear_0",
    "masked_multi_head": "self_attention",
}
"""Parts of OpenNMT-tf's names in the first revision, replaced in this order."""

_ATTENTION = re.compile(r"(.*/)?(self_attention|attention)/(linear_\d)/(weight|bias)")
_ROLE = re.compile(r"(.*/(self_attention|attention))/(query|key|value|output)/(weight|bias)")

Fields = dict[str, Any]
"""Fields of a `ModelConfig`."""


@dataclass(frozen=True)
class Specification:
    """A kind of model, which CTranslate2 calls a specification, with its weights and options."""

    revisions: range
    """The supported revisions."""
    token_stacks: tuple[str, ...]
    """The stacks that embed tokens; only they state options."""
    describe: Callable[[StoredModel], tuple[Fields, GenerationConfig]]
    """Returns the fields of a `ModelConfig` that only this kind has, and the rules of decoding; may
    change the weights."""
    find_tokenizers: Callable[[Path, Values, Rows], TokenizerFiles | None]
    """Directory, fields of `config.json` and rows of the token tables -> tokenizers; None if there
    are none."""
    num_heads: int = 8
    """Number of heads for files that lack it."""


@dataclass(frozen=True)
class StoredModel:
    """A partly read model."""

    directory: Path
    file: ModelFile
    specification: Specification
    values: Values
    """Fields of `config.json`."""
    rows: Rows
    """Numbers of rows of the stored token tables."""
    weights: Weights
    """Weights, which are converted in place to the shapes of `Transformer`."""
    problems: list[str]
    """Problems found so far."""
    notes: list[str] = field(default_factory=list)
    """See `Checkpoint`."""

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """Return the shape of a weight; raise a `CheckpointError` if it has not so many axes."""
        origin = self.directory / CTRANSLATE2_FILE
        return measure(self.weights, {name: axes}, origin, self.problems)[0]

    def option(self, stack: str, name: str, default: float) -> int | float:
        """Return an option of a stack or, in old revisions, of the model."""
        options = self.file.options
        return options.get(f"{stack}/{name}", options.get(name, default))

    def common_option(self, name: str, default: float) -> int | float:
        """Return an option that must be the same in both stacks."""
        decoder = self.option("decoder", name, default)
        states_options = "encoder" in self.specification.token_stacks
        encoder = self.option("encoder", name, default if states_options else decoder)
        if encoder != decoder:
            self.problems.append(
                f"{name} must be equal in both stacks, found {shown(encoder)} and {shown(decoder)}"
            )
        return decoder

    def count(self, name: str, value: float) -> int:
        """Return an option that counts something, as an integer of at least 1; add problems."""
        if math.isfinite(value) and value == int(value) >= 1:
            return int(value)
        self.problems.append(f"{name} must be an integer of at least 1, found {shown(value)}")
        return 1

    def layers(self, stack: str) -> int:
        """Count the layers of a stack."""
        matches = (re.match(rf"{stack}/(layer_\d+)/", name) for name in self.weights)
        return len({match[1] for match in matches if match})

    def scales_by_sqrt_depth(self) -> bool:
        """Return whether all stacks scale embeddings by sqrt(d_model); scale tables if not."""
        usual = math.sqrt(self.shape(TARGET_TABLE, 2)[1])
        scales = {
            TABLES[stack]: self._embedding_scale(stack, usual)
            for stack in self.specification.token_stacks
        }
        if all(math.isclose(scale, usual, rel_tol=1e-6) for scale in scales.values()):
            return True
        for table, scale in scales.items():
            if scale != 1:
                self.weights[table] = self.weights[table] * scale
        return False

    def _embedding_scale(self, stack: str, usual: float) -> float:
        """Return a stack's embedding scale; a file states a number, or a flag for `usual`."""
        options = self.file.options
        old_flag = options.get(f"{stack}/embeddings/multiply_by_sqrt_depth", 1)
        value = options.get(f"{stack}/scale_embeddings", old_flag)
        if isinstance(value, float):
            return value
        return usual if value else 1.0


def merge_equal(weights: Weights, name: str, other: str) -> bool:
    """Return whether two tables are equal; if so, remove the second."""
    equal = name in weights and other in weights and weights[name].equal(weights[other])
    if equal:
        del weights[other]
    return equal


def token_ids(directory: Path, vocabulary: Vocabulary, *tokens: str) -> list[int]:
    """Return the ids of special tokens, or list those that the vocabulary lacks in an error."""
    missing = [f"expected the token {t!r} in the vocabulary" for t in tokens if t not in vocabulary]
    if missing:
        raise CheckpointError(directory, missing)
    return [vocabulary.index(token) for token in tokens]


def unsupported_options(file: ModelFile) -> list[str]:
    """Return a problem for each unsupported option that is set."""
    unsupported: dict[str, str] = {}
    for name in (*file.weights, *file.options):
        parts = name.split("/")
        for part in filter(UNSUPPORTED.fullmatch, parts):
            unsupported.setdefault(part, name)
        value = file.options.get(name)
        # Equal numbers of key-value and query heads are ordinary multi-head attention.
        multi_head = parts[-1] == "num_heads_kv" and value == file.options.get(
            f"{parts[0]}/num_heads"
        )
        if value and parts[-1] not in KNOWN_OPTIONS and not multi_head:
            unsupported.setdefault(parts[-1], name)
    return [f"unsupported option {option} ({name})" for option, name in unsupported.items()]


def weight_name(name: str, *, gated: bool) -> str:
    """Return the name that `model.bin` gives a parameter of `Transformer`.

    Gated feed-forward layers project their input twice, the first time with an activation.
    """
    if name.startswith("output."):
        return name.replace("output.", "decoder/projection/")
    name = name.replace("feed_forward.gate", "ffn.linear_0")
    name = name.replace("feed_forward.inner", "ffn.linear_0_noact" if gated else "ffn.linear_0")
    name = renamed(name, PARTS)
    match = _ROLE.fullmatch(name)
    if match is None:
        return name
    scope, kind, role, tensor = match.groups()
    linear = next(linear for (k, linear), roles in STACKS.items() if k == kind and role in roles)
    return _part_name(f"{scope}/{linear}/{tensor}", role, STACKS[kind, linear])


def current_names(weights: Mapping[str, Tensor], revision: int) -> Weights:
    """Rename the weights of a text model of any revision as in the latest one."""
    if revision == 1:
        weights = {_from_first_revision(name): weight for name, weight in weights.items()}
    # Revisions before multiple embedding tables.
    return {
        SOURCE_TABLE if name == "encoder/embeddings/weight" else name: weight
        for name, weight in weights.items()
    }


def table_rows(weights: Mapping[str, Tensor]) -> Rows:
    """Return the numbers of rows of the token tables."""
    return {stack: len(weights[table]) for stack, table in TABLES.items() if table in weights}


def _from_first_revision(name: str) -> str:
    attention = "attention" if "decoder" in name else "self_attention"
    return renamed(name, FIRST_REVISION).replace("multi_head", attention)


def _part_name(name: str, role: str, roles: tuple[str, ...]) -> str:
    return f"{name} ({role})" if len(roles) > 1 else name


def split_stacks(weights: Weights) -> list[str]:
    """Replace stacks by their parts; return a problem for each that cannot be split."""
    problems = []
    for name in list(weights):
        match = _ATTENTION.fullmatch(name)
        roles = STACKS.get((match[2], match[3]), ()) if match else ()
        if len(roles) < 2:
            continue
        stack = weights.pop(name)
        if stack.dim() == 0 or len(stack) % len(roles):
            problems.append(
                f"{name} must stack {', '.join(roles)} of equal size, found {list(stack.shape)}"
            )
            continue
        for role, part in zip(roles, stack.chunk(len(roles)), strict=True):
            weights[_part_name(name, role, roles)] = part
    return problems


def unify_biases(weights: Weights) -> dict[str, bool]:
    """Return which projections have a bias, as fields of `ModelConfig`; make all layers equal.

    A stack stores zeros for parts without a bias, so after `split_stacks`, a bias that is zero in
    all layers is removed. Any other is added, as zeros, to the layers without it.
    """
    roles = ("query", "key", "value", "attention_output", "feed_forward", "logits")
    projections: dict[str, list[str]] = {f"{role}_bias": [] for role in roles}
    for name in weights:
        if (field := _bias_field(name)) is not None:
            projections[field].append(name)
    fields = {}
    for field, names in projections.items():
        biases = {name: name.replace("/weight", "/bias") for name in names}
        stored = [weights[bias] for bias in biases.values() if bias in weights]
        fields[field] = any(bool(bias.any()) for bias in stored)
        for name, bias in biases.items():
            if not fields[field]:
                weights.pop(bias, None)
            elif bias not in weights:
                weights[bias] = torch.zeros(len(weights[name]))
    return fields


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
