"""Marian (OPUS-MT) checkpoints in the format of Hugging Face, read without their library.

A directory holds `config.json` and `model.safetensors`. Marian is the post-norm Transformer, with
its own table of positions, all sines before all cosines, and a bias on the logits. What belongs to
decoding rather than to the model (forced tokens, forbidden tokens, beams) is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman.reference_model import CheckpointError, ConfigError, ModelConfig, Transformer
from dragoman.reference_model.checkpoint import CONFIG_FILE, WEIGHTS_FILE
from dragoman.reference_model.config import Activation

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}

FIELDS: Mapping[str, tuple[str, Any]] = {
    "encoder_layers": ("encoder_layers", 12),
    "decoder_layers": ("decoder_layers", 12),
    "d_model": ("d_model", 1024),
    "num_heads": ("encoder_attention_heads", 16),
    "d_ff": ("encoder_ffn_dim", 4096),
    "dropout": ("dropout", 0.1),
    "scale_embedding": ("scale_embedding", False),
    "tie_source_target": ("share_encoder_decoder_embeddings", True),
    "source_vocab_size": ("vocab_size", 58101),
    "max_source_positions": ("max_position_embeddings", 1024),
    "max_target_positions": ("max_position_embeddings", 1024),
    "pad_token_id": ("pad_token_id", 58100),
    "end_token_id": ("eos_token_id", 0),
}
"""Fields of `ModelConfig`: what `config.json` calls them, and their value where it is silent."""

PARTS: Mapping[str, str] = {
    "embedding.tokens": "embed_tokens",
    "embedding.positions.table": "embed_positions.weight",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".output.": ".out_proj.",
    ".gain": ".weight",
}
"""Parts of a weight's name in `Transformer`, to be replaced in this order."""

LOGITS_BIAS = "final_logits_bias"


def marian_config(values: Mapping[str, Any]) -> ModelConfig:
    """The configuration that the fields of a Marian `config.json` describe.

    Raises:
        ConfigError: it is of another family, or no `ModelConfig` can express it; all problems
            are listed.
    """
    problems = []
    if values.get("model_type") != "marian":
        problems.append(f"model_type must be 'marian', found {values.get('model_type')!r}")
    for name, default in (("attention_heads", 16), ("ffn_dim", 4096)):
        encoder, decoder = (values.get(f"{s}_{name}", default) for s in ("encoder", "decoder"))
        if encoder != decoder:
            problems.append(
                f"encoder_{name} and decoder_{name} must be equal, found {encoder} and {decoder}"
            )
    if not values.get("tie_word_embeddings", True):
        problems.append("tie_word_embeddings must be true, as in every Marian model")
    activation = values.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        problems.append(
            f"activation_function must be one of {', '.join(ACTIVATIONS)}, found {activation!r}"
        )
    fields = {name: values.get(theirs, default) for name, (theirs, default) in FIELDS.items()}
    target_vocab_size = fields["source_vocab_size"]
    if fields["tie_source_target"] is False:
        target_vocab_size = values.get("decoder_vocab_size") or target_vocab_size
    try:
        config = ModelConfig(
            target_vocab_size=target_vocab_size,
            start_token_id=values.get("decoder_start_token_id", fields["pad_token_id"]),
            activation=ACTIVATIONS.get(activation, "relu"),
            tie_target_output=True,
            positions="learned",
            logits_bias=True,
            **fields,
        )
    except ConfigError as error:
        raise ConfigError(problems + error.problems) from error
    if problems:
        raise ConfigError(problems)
    return config


def load_marian(directory: Path) -> Transformer:
    """Read a Marian checkpoint into a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files missing or unreadable; weights missing, unknown, misshapen, not
            finite, or unequal although tied. All problems are listed at once.
        ConfigError: as `marian_config`.
    """
    config = marian_config(_read_config(directory))
    origin = directory / WEIGHTS_FILE
    if not origin.is_file():
        raise CheckpointError(directory, [f"expected {WEIGHTS_FILE}, found none"])
    try:
        weights = load_file(origin)
    except SafetensorError as error:
        raise CheckpointError(origin, [f"not a whole safetensors file: {error}"]) from error
    problems = _merge_tied(weights, config)
    _add_optional(weights, config)
    # Compared before any memory is taken: a damaged configuration may ask for more than there is.
    with torch.device("meta"):
        expected = {
            checkpoint_name(name): parameter_shape(name, parameter)
            for name, parameter in Transformer(config).named_parameters()
        }
    problems += _problems(expected, weights)
    if problems:
        raise CheckpointError(origin, sorted(problems))
    model = Transformer(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[checkpoint_name(name)].view_as(parameter))
    return model.eval()


def checkpoint_name(name: str) -> str:
    """What a Marian checkpoint calls a parameter of `Transformer`."""
    if name == "output.bias":
        return LOGITS_BIAS
    if name == "output.weight":
        return "lm_head.weight"
    for ours, theirs in PARTS.items():
        name = name.replace(ours, theirs)
    return f"model.{name}"


def parameter_shape(name: str, parameter: Tensor) -> tuple[int, ...]:
    """The shape in which a Marian checkpoint holds a parameter of `Transformer`."""
    shape = tuple(parameter.shape)
    return (1, *shape) if name == "output.bias" else shape


def position_table(positions: int, d_model: int) -> Tensor:
    """PE(pos, i) = sin(pos / 10000^(2i/d_model)) in the first half, cos(same) in the second.

    Computed in float64, returned as float32 [positions, d_model]; the sines have the odd column.
    """
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000.0**exponent
    return torch.cat([angle.sin(), angle.cos()[:, : d_model // 2]], dim=-1).float()


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            directory, [f"expected a readable {CONFIG_FILE}: {error.strerror}"]
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, [f"not JSON: {error}"]) from error
    if not isinstance(values, dict):
        raise CheckpointError(path, [f"expected a JSON object, found {type(values).__name__}"])
    return values


def _merge_tied(weights: dict[str, Tensor], config: ModelConfig) -> list[str]:
    """Leave of each tied weight one, under the name that is asked for; problems where they differ.

    Which of its names a file has, and how many, depends on the library that wrote it.
    """
    shared, output = "model.shared.weight", "lm_head.weight"
    encoder, decoder = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    problems = []
    for names in (
        [[encoder, shared, decoder, output]]
        if config.tie_source_target
        else [[encoder], [decoder, output]]
    ):
        first, *others = [name for name in names if name in weights] or [names[0]]
        problems += [
            f"{first} and {other} must be equal, for the configuration ties them"
            for other in others
            if not torch.equal(weights[first], weights[other])
        ]
        found = [weights.pop(name) for name in (first, *others) if name in weights]
        weights.update(dict.fromkeys(names[:1], found[0]) if found else {})
    return problems


def _add_optional(weights: dict[str, Tensor], config: ModelConfig) -> None:
    """What a checkpoint may leave out: tables that can be computed, and a bias of zeros."""
    for stack, positions in (
        ("encoder", config.max_source_positions),
        ("decoder", config.max_target_positions),
    ):
        name = f"model.{stack}.embed_positions.weight"
        if name not in weights:
            weights[name] = position_table(positions, config.d_model)
    weights.setdefault(LOGITS_BIAS, torch.zeros(1, config.target_vocab_size))


def _problems(expected: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> list[str]:
    problems = [f"missing weight {name}" for name in expected.keys() - weights.keys()]
    problems += [f"unknown weight {name}" for name in weights.keys() - expected.keys()]
    for name in expected.keys() & weights.keys():
        shape, found = list(expected[name]), weights[name]
        if list(found.shape) != shape:
            problems.append(f"{name} must have shape {shape}, found {list(found.shape)}")
        elif not found.is_floating_point():
            problems.append(f"{name} must be floating point, found {found.dtype}")
        elif not torch.isfinite(found).all():
            problems.append(f"{name} has values that are NaN or infinite")
    return problems
