"""A state dictionary around `torch.nn.Transformer`, and its `config.json` -> a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.reference_model import (
    ConfigError,
    ModelConfig,
    Transformer,
)
from dragoman.reference_model.checkpoint import check_positions

from ...formats.detection import CONFIG_FILE
from ...formats.json_files import Values, read_json
from ...formats.state_dict import read_state_dict
from ...formats.tensor_files import Weights
from ..building import build, layer_count, measure
from ..family import activation
from ..state_dict_family import FieldType, check_fields
from .names import NAME_KEYS, ROLES, Names, resolve_names, weight_name

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
"""Fields of `config.json` besides the common ones, and their types."""
COMPUTED_POSITIONS = 1024
"""How many sinusoidal positions are computed if `max_positions` does not say."""


def load_torch_transformer(directory: Path) -> Transformer:
    """Read a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files are missing or unreadable; a name is not in the state dictionary
            (lists the tensors whose shape fits); weights are missing, unknown, misshapen or not
            finite. All problems are listed.
        ConfigError: fields of `config.json` are missing, unknown or out of range.
    """
    stated = read_json(directory / CONFIG_FILE)
    values = {name: value for name, value in stated.items() if value is not None}
    _check_values(values)
    weights, origin = read_state_dict(directory, values.get("weights"), values.get("state_dict"))
    for name in values.get("ignored", ()):
        weights.pop(name, None)
    names = resolve_names(values, weights, origin)
    config = _config(values, weights, names, origin)
    check_positions(config)
    problems = _complete(weights, names, config)
    name = partial(weight_name, names=names)
    return build(config, partial(Transformer, config), weights, name, origin, problems)


def _check_values(values: Values) -> None:
    check_fields(values, FIELDS)
    problems = [f"missing field {n!r}" for n in ("positions", "scale_embedding") if n not in values]
    if values.get("positions", "learned") not in ("sinusoidal", "learned"):
        problems.append(
            f"positions: expected 'sinusoidal' or 'learned', found {values['positions']!r}"
        )
    problems += [
        f"names: expected names of {', '.join(NAME_KEYS)} as strings, found {key!r}: {name!r}"
        for key, name in values.get("names", {}).items()
        if key not in NAME_KEYS or not isinstance(name, str)
    ]
    if not all(isinstance(name, str) for name in values.get("ignored", ())):
        problems.append(f"ignored: expected names of weights, found {values['ignored']!r}")
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
    """A table of positions [P, 1, D] or [1, P, D] as [P, D]; others unchanged."""
    for axis in (0, 1):
        if table.dim() == 3 and table.shape[axis] == 1:
            return table.squeeze(axis)
    return table


def _complete(weights: Weights, names: Names, config: ModelConfig) -> list[str]:
    """Split stacked projections and keep one name of tied tables; returns problems."""
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
