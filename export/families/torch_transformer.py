"""Models around PyTorch's own `torch.nn.Transformer`, or its encoder and decoder.

Their owner writes `config.json` beside the weights, with what cannot be seen in them: the number of
heads, the order of norms, the activation, whether embeddings are scaled, the tokens, and what the
parts around the module are called:

    {"model_type": "torch.nn.Transformer", "num_heads": 8, "norm_first": false,
     "activation": "relu", "scale_embedding": true, "positions": "sinusoidal",
     "pad_token_id": 1, "start_token_id": 2, "end_token_id": 3,
     "names": {"transformer": "transformer", "source_embedding": "src_tok_emb.embedding",
               "target_embedding": "tgt_tok_emb.embedding", "output": "generator"}}

`docs/families.md` says what each field means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    GenerationConfig,
    ModelConfig,
    Transformer,
)
from dragoman.reference_model.checkpoint import CONFIG_FILE

from .building import build, measure
from .family import Values, Weights, activation, check_positions, renamed
from .json_files import read_json
from .state_dict import check_fields, layer_count, read_state_dict

MODEL_TYPE = "torch.nn.Transformer"

FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "activation": str,
    "norm_first": bool,
    "layer_norm_eps": (float, int),
    "scale_embedding": bool,
    "positions": str,
    "max_positions": int,
    "names": dict,
    "ignored": list,
}
"""Of `config.json`, beside those of every state dictionary, and their types."""
NAMES = (
    "transformer",
    "encoder",
    "decoder",
    "source_embedding",
    "target_embedding",
    "source_positions",
    "target_positions",
    "output",
)
"""What `names` may name: modules, or tensors."""

COMPUTED_POSITIONS = 1024
"""How many positions are computed where `max_positions` does not say."""

PARTS: Mapping[str, str] = {
    "self_attention_residual.norm": "norm1",
    "cross_attention_residual.norm": "norm2",
    "self_attention.output": "self_attn.out_proj",
    "cross_attention.output": "multihead_attn.out_proj",
    "feed_forward.inner": "linear1",
    "feed_forward.outer": "linear2",
    "gain": "weight",
}
"""Parts of a parameter's name in `Transformer`, to be replaced in this order."""
ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
ROLES = ("query", "key", "value")
"""What is stacked in `in_proj`, in this order; parts are named `in_proj_weight (query)` here."""


@dataclass(frozen=True)
class _Names:
    """Of weights; a stack's is what its weights' names begin with."""

    encoder: str
    decoder: str
    source: str
    target: str
    source_positions: str | None
    target_positions: str | None
    output: str

    @property
    def output_bias(self) -> str:
        return self.output.removesuffix("weight") + "bias"


def load_torch_transformer(directory: Path) -> Transformer:
    """Read a model into a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files missing or unreadable; names that are not in the state dictionary,
            with the names of the tensors that it could be by their shape; weights missing, unknown,
            misshapen or not finite. All problems are listed at once.
        ConfigError: fields of `config.json` are missing, unknown or out of range.
    """
    given = read_json(directory / CONFIG_FILE)
    values = {name: value for name, value in given.items() if value is not None}
    _check_values(values)
    weights, origin = read_state_dict(directory, values)
    for name in values.get("ignored", ()):
        weights.pop(name, None)
    names = _find(values, weights, origin)
    config = _config(values, weights, names, origin)
    check_positions(config)
    problems = _complete(weights, names, config)
    name = partial(weight_name, names=names)
    return build(config, GenerationConfig(), weights, name, origin, problems)


def weight_name(name: str, names: _Names) -> str:
    """What a state dictionary calls a parameter of `Transformer`."""
    around = {
        "encoder.embedding.tokens.weight": names.source,
        "decoder.embedding.tokens.weight": names.target,
        "encoder.embedding.positions.table": names.source_positions,
        "decoder.embedding.positions.table": names.target_positions,
        "output.weight": names.output,
        "output.bias": names.output_bias,
    }
    if (found := around.get(name)) is not None:
        return found
    stack, _, rest = name.partition(".")
    prefix = names.encoder if stack == "encoder" else names.decoder
    if stack == "encoder":
        rest = rest.replace("feed_forward_residual.norm", "norm2")
    rest = rest.replace("feed_forward_residual.norm", "norm3")
    for ours, theirs in ATTENTIONS.items():
        for role in ROLES:
            for kind in ("weight", "bias"):
                part = f"{theirs}.in_proj_{kind} ({role})"
                rest = rest.replace(f".{ours}.{role}.{kind}", f".{part}")
    return prefix + renamed(rest, PARTS)


def _check_values(values: Values) -> None:
    check_fields(values, FIELDS)
    problems = [f"missing field {n!r}" for n in ("positions", "scale_embedding") if n not in values]
    if values.get("positions", "learned") not in ("sinusoidal", "learned"):
        problems.append(
            f"positions: expected 'sinusoidal' or 'learned', found {values['positions']!r}"
        )
    problems += [
        f"names: expected names of {', '.join(NAMES)} as strings, found {key!r}: {name!r}"
        for key, name in values.get("names", {}).items()
        if key not in NAMES or not isinstance(name, str)
    ]
    if not all(isinstance(name, str) for name in values.get("ignored", ())):
        problems.append(f"ignored: expected names of weights, found {values['ignored']!r}")
    activation(values, "activation", "relu", problems)
    if problems:
        raise ConfigError(problems)


def _find(values: Values, weights: Weights, origin: Path) -> _Names:
    """The weights that `names` means."""
    given = values.get("names", {})
    problems: list[str] = []
    encoder, decoder = (_stack(given, stack, weights, problems) for stack in ("encoder", "decoder"))
    if problems:
        raise CheckpointError(origin, problems)
    first = f"{encoder}layers.0.self_attn.in_proj_weight"
    d_model = measure(weights, {first: 2}, origin)[0][1]

    def name_of(key: str, default: str | None = None) -> str:
        """The tensor that a name means: itself, or a module's weight."""
        name = given.get(key)
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
            f"{', '.join(candidates) or 'none'}; found {name!r}"
        )
        return ""

    source = name_of("source_embedding")
    target = name_of("target_embedding", source)
    stored = values["positions"] == "learned" or "source_positions" in given
    source_positions = name_of("source_positions") if stored else None
    names = _Names(
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


def _stack(given: Mapping[str, str], stack: str, weights: Weights, problems: list[str]) -> str:
    """What the names of a stack's weights begin with, as named or as they show it themselves."""
    ending = f"layers.0.{'self_attn' if stack == 'encoder' else 'multihead_attn'}.in_proj_weight"
    found = [name.removesuffix(ending) for name in weights if name.endswith(ending)]
    if stack == "encoder":
        cross = "layers.0.multihead_attn.in_proj_weight"
        found = [prefix for prefix in found if prefix + cross not in weights]
    if stack in given:
        wanted = f"{given[stack]}."
    elif "transformer" in given:
        wanted = f"{given['transformer']}.{stack}.".removeprefix(".")
    elif len(found) == 1:
        return found[0]
    else:
        wanted = ""
    if wanted not in found:
        candidates = ", ".join(prefix.removesuffix(".") for prefix in found) or "none"
        problems.append(
            f"names.{stack}: expected a module that has {ending}, one of {candidates}; "
            f"found {wanted.removesuffix('.') or None!r}"
        )
    return wanted


def _config(values: Values, weights: Weights, names: _Names, origin: Path) -> ModelConfig:
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
    """Positions [P, 1, D] or [1, P, D] -> [P, D]; others as they are."""
    for axis in (0, 1):
        if table.dim() == 3 and table.shape[axis] == 1:
            return table.squeeze(axis)
    return table


def _complete(weights: Weights, names: _Names, config: ModelConfig) -> list[str]:
    """Stacked projections in parts, and tied tables once; gives what cannot be split."""
    problems = []
    for name in list(weights):
        if not name.endswith((".in_proj_weight", ".in_proj_bias")):
            continue
        if not name.startswith((f"{names.encoder}layers.", f"{names.decoder}layers.")):
            continue
        stack = weights.pop(name)
        if stack.dim() == 0 or len(stack) % 3:
            problems.append(f"{name} must hold three parts of one size, found {list(stack.shape)}")
            continue
        for role, part in zip(ROLES, stack.chunk(3), strict=True):
            weights[f"{name} ({role})"] = part
    if config.tie_source_target and names.target != names.source:
        del weights[names.target]
    if config.tie_target_output and names.output not in (names.source, names.target):
        del weights[names.output]
    return problems
