"""Families whose checkpoints are bare state dictionaries, without the code of their model.

The owner adds a `config.json` with what the weights do not show (`docs/families.md`). There are
models built around PyTorch's own `torch.nn.Transformer`, or its encoder and decoder, with the names
of the modules around it, and the Transformer of the tutorial "pytorch-seq2seq" (Trevett 2021),
which has post-norm, ReLU, learned positions, embeddings scaled by sqrt(d_model), and no tied
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.errors import shown
from dragoman.reference_model import CheckpointError, ConfigError, ModelConfig, Transformer
from dragoman.reference_model.checkpoint import check_positions
from dragoman.reference_model.settings import all_are

from ..formats.json_files import Values
from ..formats.tensor_files import Weights, read_state_dict
from .checkpoint import build, layer_count, measure
from .family import activation, renamed

FieldType = type | tuple[type, ...]


COMMON_FIELDS: Mapping[str, FieldType] = {
    "model_type": str,
    "weights": str,
    "state_dict": str,
    "num_heads": int,
    "pad_token_id": int,
    "start_token_id": int,
    "end_token_id": int,
}
"""Fields of all state dictionary configurations, with their types."""
REQUIRED = ("num_heads", "pad_token_id", "start_token_id", "end_token_id")

TYPE_NAMES: Mapping[type, str] = {
    int: "an integer",
    str: "a string",
    bool: "true or false",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def check_fields(values: Values, family_fields: Mapping[str, FieldType]) -> None:
    """Check that required fields are present, and that all fields are known and well-typed."""
    known = {**COMMON_FIELDS, **family_fields}
    problems = [f"missing field {name!r}" for name in REQUIRED if name not in values]
    problems += [
        f"unknown field {shown(name)}, expected one of {', '.join(known)}"
        for name in values
        if name not in known
    ]
    for name, kind in known.items():
        value = values.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and value is True)):
            expected = TYPE_NAMES[kind if isinstance(kind, type) else kind[0]]
            problems.append(f"{name}: expected {expected}, found {shown(value)}")
    if problems:
        raise ConfigError(problems)


NAME_KEYS = (
    "transformer",
    "encoder",
    "decoder",
    "source_embedding",
    "target_embedding",
    "source_positions",
    "target_positions",
    "output",
)
"""The keys of the field `names`; their values are names of modules or tensors."""

PARTS: Mapping[str, str] = {
    "self_attention_residual.norm": "norm1",
    "cross_attention_residual.norm": "norm2",
    "self_attention.output": "self_attn.out_proj",
    "cross_attention.output": "multihead_attn.out_proj",
    "feed_forward.inner": "linear1",
    "feed_forward.outer": "linear2",
    "gain": "weight",
}
"""Parts of a parameter's name in `Transformer`, replaced in this order."""
ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
ROLES = ("query", "key", "value")
"""The parts of `in_proj`, in order; a split part is named as in `in_proj_weight (query)`."""


@dataclass(frozen=True)
class Names:
    """Names of weights in a state dictionary."""

    encoder: str
    decoder: str
    """The prefixes of the names of weights of both stacks."""
    source: str
    target: str
    """The token embeddings of both sides."""
    source_positions: str | None
    target_positions: str | None
    """The tables of positions; None if positions are computed."""
    output: str
    """The projection to logits."""

    @property
    def output_bias(self) -> str:
        """The bias of the projection to logits."""
        return self.output.removesuffix("weight") + "bias"


def _resolve_names(values: Values, weights: Weights, origin: Path) -> Names:
    stated = values.get("names", {})
    problems: list[str] = []
    encoder, decoder = (
        _stack_prefix(stated, stack, weights, problems) for stack in ("encoder", "decoder")
    )
    if problems:
        raise CheckpointError(origin, problems)
    first = f"{encoder}layers.0.self_attn.in_proj_weight"
    d_model = measure(weights, {first: 2}, origin)[0][1]

    def name_of(key: str, default: str | None = None) -> str:
        name = stated.get(key)
        if name is None and default is not None:
            return default
        for candidate in (name, f"{name}.weight"):
            if candidate in weights:
                return str(candidate)
        candidates = [
            other
            for other, tensor in weights.items()
            if not other.startswith((encoder + "layers.", decoder + "layers."))
            and [*tensor.shape[-1:]] == [d_model]
            and sum(size != 1 for size in tensor.shape) == 2
        ]
        problems.append(
            f"names.{key}: expected a weight of shape [*, {d_model}], one of "
            f"{', '.join(candidates) or 'none'}; found {shown(name)}"
        )
        return ""

    source = name_of("source_embedding")
    target = name_of("target_embedding", source)
    stored = values["positions"] == "learned" or "source_positions" in stated
    source_positions = name_of("source_positions") if stored else None
    names = Names(
        encoder,
        decoder,
        source,
        target,
        source_positions,
        name_of("target_positions", source_positions) if stored else None,
        name_of("output", target),
    )
    if problems:
        raise CheckpointError(origin, problems)
    return names


def _stack_prefix(
    stated: Mapping[str, str], stack: str, weights: Weights, problems: list[str]
) -> str:
    ending = f"layers.0.{'self_attn' if stack == 'encoder' else 'multihead_attn'}.in_proj_weight"
    candidates = [name.removesuffix(ending) for name in weights if name.endswith(ending)]
    if stack == "encoder":
        cross = "layers.0.multihead_attn.in_proj_weight"
        candidates = [prefix for prefix in candidates if prefix + cross not in weights]
    if stack in stated:
        prefix = f"{stated[stack]}."
    elif "transformer" in stated:
        prefix = f"{stated['transformer']}.{stack}.".removeprefix(".")
    elif len(candidates) == 1:
        return candidates[0]
    else:
        prefix = ""
    if prefix not in candidates:
        modules = ", ".join(candidate.removesuffix(".") for candidate in candidates) or "none"
        problems.append(
            f"names.{stack}: expected a module that has {ending}, one of {modules}; "
            f"found {shown(prefix.removesuffix('.') or None)}"
        )
    return prefix


def _weight_name(name: str, names: Names) -> str:
    outside_stacks = {
        "encoder.embedding.tokens.weight": names.source,
        "decoder.embedding.tokens.weight": names.target,
        "encoder.embedding.positions.table": names.source_positions,
        "decoder.embedding.positions.table": names.target_positions,
        "output.weight": names.output,
        "output.bias": names.output_bias,
    }
    if (theirs := outside_stacks.get(name)) is not None:
        return theirs
    stack, _, rest = name.partition(".")
    prefix = names.encoder if stack == "encoder" else names.decoder
    if stack == "encoder":
        rest = rest.replace("feed_forward_residual.norm", "norm2")
    rest = rest.replace("feed_forward_residual.norm", "norm3")
    for ours, attention in ATTENTIONS.items():
        for role in ROLES:
            for kind in ("weight", "bias"):
                part = f"{attention}.in_proj_{kind} ({role})"
                rest = rest.replace(f".{ours}.{role}.{kind}", f".{part}")
    return prefix + renamed(rest, PARTS)


FIELDS: Mapping[str, FieldType] = {
    "activation": str,
    "norm_first": bool,
    "layer_norm_eps": (float, int),
    "scale_embedding": bool,
    "positions": str,
    "max_positions": int,
    "names": dict,
    "ignored": list,
}
"""Additional fields of `config.json`, with their types."""
COMPUTED_POSITIONS = 1024
"""The default of `max_positions` for sinusoidal positions."""


def load_torch_transformer(directory: Path, config: Values) -> Transformer:
    """Read a model in evaluation mode, fp32.

    If a name is not in the state dictionary, the error lists the tensors whose shape fits.
    """
    values = {name: value for name, value in config.items() if value is not None}
    _check_values(values)
    weights, origin = read_state_dict(directory, values.get("weights"), values.get("state_dict"))
    for name in values.get("ignored", ()):
        weights.pop(name, None)
    names = _resolve_names(values, weights, origin)
    model = _config(values, weights, names, origin)
    check_positions(model)
    problems = _complete(weights, names, model)
    name = partial(_weight_name, names=names)
    return build(model, partial(Transformer, model), weights, name, origin, problems)


def _check_values(values: Values) -> None:
    check_fields(values, FIELDS)
    problems = [f"missing field {n!r}" for n in ("positions", "scale_embedding") if n not in values]
    if values.get("positions", "learned") not in ("sinusoidal", "learned"):
        problems.append(
            f"positions: expected 'sinusoidal' or 'learned', found {shown(values['positions'])}"
        )
    problems += [
        f"names: expected names of {', '.join(NAME_KEYS)} as strings, found {shown(key)}: "
        f"{shown(name)}"
        for key, name in values.get("names", {}).items()
        if key not in NAME_KEYS or not isinstance(name, str)
    ]
    if not all_are(str, values.get("ignored", ())):
        problems.append(f"ignored: expected names of weights, found {shown(values['ignored'])}")
    activation(values, "activation", "relu", problems)
    if problems:
        raise ConfigError(problems)


def _config(values: Values, weights: Weights, names: Names, origin: Path) -> ModelConfig:
    def size(name: str) -> int:
        return measure(weights, {name: 2}, origin)[0][0]

    layer = f"{names.encoder}layers.0"
    d_model = weights[f"{layer}.self_attn.in_proj_weight"].shape[1]
    bias, norm_bias = (f"{layer}.{name}.bias" in weights for name in ("linear1", "norm1"))
    computed = values.get("max_positions", COMPUTED_POSITIONS)
    positions: dict[str, Any] = {
        "positions": "sinusoidal",
        "max_source_positions": computed,
        "max_target_positions": computed,
    }
    if names.source_positions is not None and names.target_positions is not None:
        for name in {names.source_positions, names.target_positions}:
            weights[name] = _without_batch(weights[name])
        positions = {
            "positions": "learned",
            "max_source_positions": size(names.source_positions),
            "max_target_positions": size(names.target_positions),
        }
    names_of_biases = ("query", "key", "value", "attention_output", "feed_forward")
    biases: dict[str, Any] = {f"{name}_bias": bias for name in names_of_biases}
    return ModelConfig(
        source_vocab_size=size(names.source),
        target_vocab_size=size(names.target),
        encoder_layers=layer_count(weights, f"{names.encoder}layers."),
        decoder_layers=layer_count(weights, f"{names.decoder}layers."),
        d_model=d_model,
        num_heads=values["num_heads"],
        d_ff=size(f"{layer}.linear1.weight"),
        activation=activation(values, "activation", "relu", []),
        norm_order="pre" if values.get("norm_first", False) else "post",
        final_norm=any(f"{p}norm.weight" in weights for p in (names.encoder, names.decoder)),
        norm_bias=norm_bias,
        norm_epsilon=values.get("layer_norm_eps", 1e-5),
        logits_bias=names.output_bias in weights,
        tie_source_target=weights[names.source].equal(weights[names.target]),
        tie_target_output=weights[names.target].equal(weights[names.output]),
        scale_embedding=values["scale_embedding"],
        **{name: values[name] for name in ("pad_token_id", "start_token_id", "end_token_id")},
        **biases,
        **positions,
    )


def _without_batch(table: Tensor) -> Tensor:
    """Return a table of positions [P, 1, D] or [1, P, D] as [P, D]; others unchanged."""
    for axis in (0, 1):
        if table.dim() == 3 and table.shape[axis] == 1:
            return table.squeeze(axis)
    return table


def _complete(weights: Weights, names: Names, config: ModelConfig) -> list[str]:
    """Split stacked projections and keep one name of tied tables; return problems."""
    problems = []
    for name in list(weights):
        if not name.endswith((".in_proj_weight", ".in_proj_bias")):
            continue
        if not name.startswith((f"{names.encoder}layers.", f"{names.decoder}layers.")):
            continue
        stack = weights.pop(name)
        if stack.dim() == 0 or len(stack) % 3:
            problems.append(
                f"{name} must stack three parts of equal size, found {list(stack.shape)}"
            )
            continue
        for role, part in zip(ROLES, stack.chunk(3), strict=True):
            weights[f"{name} ({role})"] = part
    if config.tie_source_target and names.target != names.source:
        del weights[names.target]
    if config.tie_target_output and names.output not in (names.source, names.target):
        del weights[names.output]
    return problems


SEQ2SEQ_PARTS: Mapping[str, str] = {
    "embedding.tokens": "tok_embedding",
    "embedding.positions.table": "pos_embedding.weight",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "enc_attn_layer_norm",
    "feed_forward_residual.norm": "ff_layer_norm",
    "cross_attention": "encoder_attention",
    "feed_forward.inner": "positionwise_feedforward.fc_1",
    "feed_forward.outer": "positionwise_feedforward.fc_2",
    ".query.": ".fc_q.",
    ".key.": ".fc_k.",
    ".value.": ".fc_v.",
    ".output.": ".fc_o.",
    "gain": "weight",
}
"""Parts of a parameter's name in `Transformer`, replaced in this order."""


def load_pytorch_seq2seq(directory: Path, values: Values) -> Transformer:
    """Read a model in evaluation mode, fp32."""
    check_fields(values, {})
    weights, origin = read_state_dict(directory, values.get("weights"), values.get("state_dict"))
    tables = [name for name in weights if name.endswith("encoder.tok_embedding.weight")]
    if len(tables) != 1:
        raise CheckpointError(
            origin, [f"expected one encoder.tok_embedding.weight, found {len(tables)}"]
        )
    prefix = tables[0].removesuffix("encoder.tok_embedding.weight")
    config = _seq2seq_config(values, weights, prefix, origin)
    make = partial(Transformer, config)
    return build(config, make, weights, partial(_seq2seq_weight_name, prefix=prefix), origin)


def _seq2seq_weight_name(name: str, *, prefix: str) -> str:
    if name.startswith("output."):
        return prefix + name.replace("output.", "decoder.fc_out.")
    return prefix + renamed(name, SEQ2SEQ_PARTS)


def _seq2seq_config(values: Values, weights: Weights, prefix: str, origin: Path) -> ModelConfig:
    (source, d_model), (target, _), (source_positions, _), (target_positions, _), (d_ff, _) = (
        measure(
            weights,
            {
                f"{prefix}encoder.tok_embedding.weight": 2,
                f"{prefix}decoder.tok_embedding.weight": 2,
                f"{prefix}encoder.pos_embedding.weight": 2,
                f"{prefix}decoder.pos_embedding.weight": 2,
                f"{prefix}encoder.layers.0.positionwise_feedforward.fc_1.weight": 2,
            },
            origin,
        )
    )
    return ModelConfig(
        source_vocab_size=source,
        target_vocab_size=target,
        encoder_layers=layer_count(weights, f"{prefix}encoder.layers."),
        decoder_layers=layer_count(weights, f"{prefix}decoder.layers."),
        d_model=d_model,
        num_heads=values["num_heads"],
        d_ff=d_ff,
        logits_bias=True,
        tie_target_output=False,
        positions="learned",
        max_source_positions=source_positions,
        max_target_positions=target_positions,
        pad_token_id=values["pad_token_id"],
        start_token_id=values["start_token_id"],
        end_token_id=values["end_token_id"],
    )
