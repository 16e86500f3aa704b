"""Writes models as CTranslate2's converters do, from the description of the format only."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.reference_model import Transformer
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.reference_model.stacks import AudioEmbedding, Embedding

KINDS = [torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16]
ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "silu": 2, "gelu": 3}

Variables = dict[str, Tensor]
Aliases = dict[str, str]


def text(string: str) -> bytes:
    return struct.pack("<H", len(string) + 1) + string.encode() + b"\0"


def model_file(
    variables: Mapping[str, Tensor],
    aliases: Mapping[str, str],
    *,
    version: int = 6,
    specification: str = "TransformerSpec",
    revision: int = 7,
) -> bytes:
    parts = [struct.pack("<I", version)]
    if version >= 2:
        parts += [text(specification), struct.pack("<I", revision)]
    parts.append(struct.pack("<I", len(variables)))
    for name, value in sorted(variables.items()):
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        parts += [text(name), struct.pack(f"<B{value.dim()}I", value.dim(), *value.shape)]
        if version >= 4:
            parts.append(struct.pack("<BI", KINDS.index(value.dtype), len(data)))
        else:
            parts.append(struct.pack("<BI", value.itemsize, value.numel()))
        parts.append(data)
    if version >= 3:
        parts.append(struct.pack("<I", len(aliases)))
        parts += [text(alias) + text(name) for alias, name in aliases.items()]
    return b"".join(parts)


def write_text_model(
    model: Transformer,
    directory: Path,
    *,
    numbers: str = "float32",
    options: Mapping[str, Tensor] | None = None,
    without: tuple[str, ...] = (),
    version: int = 6,
    **config: Any,
) -> None:
    """Write the directory of a text model, whose tokens are s0, s1, ... and t0, t1, ...

    Args:
        numbers: float32, float16, bfloat16, int16 or int8
        options: variables to add or replace
        without: prefixes of the names of variables to leave out
        config: fields of config.json
    """
    variables, aliases = described(model)
    variables |= options or {}
    variables = {n: v for n, v in variables.items() if not n.startswith(without or ("-",))}
    directory.mkdir(exist_ok=True)
    data = model_file(quantized(variables, numbers), aliases, version=version)
    (directory / "model.bin").write_bytes(data)
    stated = model.config
    values = {
        "bos_token": "t0",
        "eos_token": f"t{stated.end_token_id}",
        "unk_token": "s0",
        "decoder_start_token": f"t{stated.start_token_id}",
        "add_source_bos": False,
        "add_source_eos": False,
        "layer_norm_epsilon": stated.norm_epsilon,
        "multi_query_attention": False,
    }
    (directory / "config.json").write_text(json.dumps(values | config))
    for side, size in (
        ("source", stated.source_vocab_size or 0),
        ("target", stated.target_vocab_size),
    ):
        names = [f"{side[0]}{i}" for i in range(size)]
        (directory / f"{side}_vocabulary.json").write_text(json.dumps(names))


def write_whisper_model(
    model: Transformer, directory: Path, tokens: list[str], *, numbers: str, **config: Any
) -> None:
    """Write the directory of a Whisper model.

    Args:
        tokens: the vocabulary
        config: fields of config.json
    """
    variables, aliases = described(model)
    data = model_file(
        quantized(variables, numbers), aliases, specification="WhisperSpec", revision=3
    )
    directory.mkdir(exist_ok=True)
    (directory / "model.bin").write_bytes(data)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "vocabulary.json").write_text(json.dumps(tokens))


def quantized(variables: Variables, numbers: str) -> Variables:
    """As the library's converters do: only weights become integers, all arrays 16-bit floats."""
    if numbers in ("float32", "float16", "bfloat16"):
        kind: torch.dtype = getattr(torch, numbers)
        return {
            n: v.to(kind) if v.dim() and v.is_floating_point() else v for n, v in variables.items()
        }
    written: Variables = {}
    for name, value in variables.items():
        if not name.endswith("/weight"):
            written[name] = value
        elif numbers == "int16":
            scale = torch.tensor(2**10) / value.abs().max()
            written |= {name: (value * scale).round().short(), f"{name}_scale": scale}
        else:
            largest = value.flatten(1).abs().amax(1)
            scale = 127 / torch.where(largest == 0, 127, largest)
            rounded = (value * scale.reshape(-1, *[1] * (value.dim() - 1))).round().char()
            written |= {name: rounded, f"{name}_scale": scale}
    return written


def described(model: Transformer) -> tuple[Variables, Aliases]:
    """The weights and options of a model, by the names that the library's converters give them."""
    config, speech = model.config, model.config.feature_size is not None
    variables: Variables = {}
    aliases: Aliases = {}
    for stack, module in (("encoder", model.encoder), ("decoder", model.decoder)):
        embedding = module.embedding
        variables[f"{stack}/num_heads"] = torch.tensor(config.num_heads, dtype=torch.int16)
        if isinstance(embedding, AudioEmbedding):
            for name, part in (
                ("conv1", embedding.first_convolution),
                ("conv2", embedding.second_convolution),
            ):
                assert part.bias is not None
                variables |= {
                    f"{stack}/{name}/weight": part.weight,
                    f"{stack}/{name}/bias": part.bias,
                }
        if not isinstance(embedding, AudioEmbedding):
            variables |= {
                f"{stack}/pre_norm": flag(config.norm_order == "pre"),
                f"{stack}/activation": torch.tensor(ACTIVATIONS[config.activation]).char(),
                f"{stack}/scale_embeddings": flag(config.scale_embedding),
            }
            _add_norm(variables, f"{stack}/layernorm_embedding", embedding.norm)
        assert embedding.positions is not None
        variables[f"{stack}/position_encodings/encodings"] = embedding.positions.table
        _add_norm(variables, f"{stack}/layer_norm", module.norm)
        for index, layer in enumerate(module.layers):
            _add_layer(variables, f"{stack}/layer_{index}", layer)
    variables |= {
        "decoder/start_from_zero_embedding": flag(False),
        "decoder/alibi": flag(False),
        "decoder/alibi_use_positive_positions": flag(True),
        "decoder/alignment_layer": torch.tensor(-1, dtype=torch.int16),
        "decoder/alignment_heads": torch.tensor(1, dtype=torch.int16),
    }
    if not speech:
        variables["encoder/embeddings_merge"] = flag(False)
        variables["encoder/multi_query_attention"] = flag(False)
    _add_tables(variables, aliases, model)
    return {name: value.detach() for name, value in variables.items()}, aliases


def flag(value: bool) -> Tensor:
    return torch.tensor(value).char()


def _add_tables(variables: Variables, aliases: Aliases, model: Transformer) -> None:
    """Store each table once, under the first of its names."""
    config, target = model.config, "decoder/embeddings/weight"
    assert isinstance(model.decoder.embedding, Embedding)
    variables[target] = model.decoder.embedding.tokens.weight
    if isinstance(model.encoder.embedding, Embedding):
        source = "encoder/embeddings_0/weight"
        if config.tie_source_target:
            aliases[source] = target
        else:
            variables[source] = model.encoder.embedding.tokens.weight
    if config.tie_target_output:
        aliases["decoder/projection/weight"] = target
    else:
        variables["decoder/projection/weight"] = model.output.weight
    if model.output.bias is not None:
        variables["decoder/projection/bias"] = model.output.bias


def _add_layer(variables: Variables, scope: str, layer: Any) -> None:
    attention: MultiHeadAttention = layer.self_attention
    _add_product(
        variables,
        f"{scope}/self_attention/linear_0",
        attention.query,
        attention.key,
        attention.value,
    )
    _add_product(variables, f"{scope}/self_attention/linear_1", attention.output)
    _add_norm(variables, f"{scope}/self_attention/layer_norm", layer.self_attention_residual.norm)
    attentions = [(f"{scope}/self_attention", attention)]
    if hasattr(layer, "cross_attention"):
        cross: MultiHeadAttention = layer.cross_attention
        _add_product(variables, f"{scope}/attention/linear_0", cross.query)
        _add_product(variables, f"{scope}/attention/linear_1", cross.key, cross.value)
        _add_product(variables, f"{scope}/attention/linear_2", cross.output)
        _add_norm(variables, f"{scope}/attention/layer_norm", layer.cross_attention_residual.norm)
        attentions.append((f"{scope}/attention", cross))
    for name, module in attentions:
        if module.head_size * module.num_heads != module.query.in_features:
            variables[f"{name}/head_dim"] = torch.tensor(module.head_size, dtype=torch.int32)
    feed_forward = layer.feed_forward
    if feed_forward.gate is not None:
        _add_product(variables, f"{scope}/ffn/linear_0", feed_forward.gate)
        _add_product(variables, f"{scope}/ffn/linear_0_noact", feed_forward.inner)
    else:
        _add_product(variables, f"{scope}/ffn/linear_0", feed_forward.inner)
    _add_product(variables, f"{scope}/ffn/linear_1", feed_forward.outer)
    _add_norm(variables, f"{scope}/ffn/layer_norm", layer.feed_forward_residual.norm)


def _add_product(variables: Variables, name: str, *parts: Any) -> None:
    """Stack the parts; a part without a bias gets zeros if another part has one."""
    variables[f"{name}/weight"] = torch.cat([part.weight for part in parts])
    if any(part.bias is not None for part in parts):
        biases = [torch.zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]
        variables[f"{name}/bias"] = torch.cat(biases)


def _add_norm(variables: Variables, name: str, norm: Any) -> None:
    if not hasattr(norm, "gain"):
        return
    variables[f"{name}/gamma"] = norm.gain
    if getattr(norm, "bias", None) is not None:
        variables[f"{name}/beta"] = norm.bias
