"""Converts reference models to CTranslate2's format.

The format differs only in layout: projections of the same input are stacked into one matrix,
position tables are ordinary weights, and tokens are identified by name.

Dimensions as in `reference_model`, and: V vocabulary, P positions, F d_ff, I = H * Dh.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import DragomanError
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.reference_model.config import Activation
from dragoman.reference_model.layers import DecoderLayer, EncoderLayer, LayerNorm, Norm
from dragoman.reference_model.stacks import Embedding

from .ctranslate2_runtime import CTranslate2Peer, source_names, target_names
from .interface import import_library

ACTIVATIONS: dict[Activation, str] = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "tanh": "Tanh",
}
"""Names in `ctranslate2.specs.Activation`."""


def compute_types() -> list[str]:
    """Return the distinct compute types of CTranslate2 on this processor, float32 first.

    Several names may select the same type ("int8" and "int8_float32"), so a small model is loaded
    with each name.
    """
    names: set[str] = import_library("ctranslate2").get_supported_compute_types("cpu")
    sizes = {"source_vocab_size": 8, "target_vocab_size": 8, "d_model": 32, "d_ff": 32}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "num_heads": 1}
    model = Transformer(ModelConfig.from_dict({**sizes, **layers}))
    name_of_type: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name != "float32", len(name), name)):
        with tempfile.TemporaryDirectory() as directory:
            convert(model, Path(directory), quantization=name)
            compute_type = CTranslate2Peer(Path(directory), 1, name).compute_type
        name_of_type.setdefault(compute_type, name)
    return list(name_of_type.values())


def prepare(source: Path, directory: Path, *, mode: str) -> Path:
    """Convert a Hugging Face checkpoint."""
    convert(load_hugging_face(source), directory, quantization=mode)
    return directory


def convert(model: Transformer, directory: Path, *, quantization: str | None = None) -> None:
    """Write the model into a new or empty directory; the model itself does not change.

    Raises:
        DragomanError: CTranslate2 is missing or does not know the quantization, the model has an
            option that is not converted, or the directory is not empty. Nothing is written then.
    """
    library = import_library("ctranslate2")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DragomanError(f"expected a new or empty directory, found {directory}")
    _check_options(model.config)
    spec = _specification(library.specs, model.config)
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder.embedding, Embedding)
    _set_embedding(spec.encoder, spec.encoder.embeddings[0], encoder.embedding)
    _set_embedding(spec.decoder, spec.decoder.embeddings, decoder.embedding)
    for stack_spec, stack in ((spec.encoder, encoder), (spec.decoder, decoder)):
        layers = cast("Iterable[EncoderLayer | DecoderLayer]", stack.layers)
        for layer_spec, layer in zip(stack_spec.layer, layers, strict=True):
            _set_layer(layer_spec, layer)
        if isinstance(stack.norm, LayerNorm):
            _set_norm(stack_spec.layer_norm, stack.norm)
    _set_linears(spec.decoder.projection, model.output)
    spec.validate()
    try:
        spec.optimize(quantization=quantization)
    except ValueError as error:
        raise DragomanError(f"CTranslate2 cannot quantize: {error}") from error
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def _check_options(config: ModelConfig) -> None:
    final_norm = config.norm_order == "pre" if config.final_norm is None else config.final_norm
    flags = "gated_feed_forward", "bilinear_scores", "additive_scores"
    unsupported = {
        **{name: getattr(config, name) for name in flags},
        "decoder_kind": config.is_recurrent,
        "feature_size": config.feature_size is not None,
        "norm": config.norm != "layer",
        "final_norm": final_norm != (config.norm_order == "pre"),
        "positions": config.positions == "relative",
        "pad_has_position": not config.pad_has_position,
        "d_value": config.d_value not in (None, config.d_head),
        "token_types": config.token_types > 0,
        "score_scale": config.score_scale is not None,
    }
    options = [f"{name}={getattr(config, name)!r}" for name in unsupported if unsupported[name]]
    if options:
        raise DragomanError(
            "expected a model with tokens as source, layer norm, no gated feed-forward, no "
            "relative positions, a position for padding, values as wide as keys, no token types, "
            "scaled dot products and no recurrence, which can be converted to CTranslate2, found "
            f"{', '.join(options)}"
        )


def _specification(specs: Any, config: ModelConfig) -> Any:
    """Return a `ctranslate2.specs.TransformerSpec` without weights."""
    options = {
        "pre_norm": config.norm_order == "pre",
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.embedding_norm,
        "head_dim": config.d_head,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, config.num_heads, **options),
        specs.TransformerDecoderSpec(config.decoder_layers, config.num_heads, **options),
    )
    spec.register_source_vocabulary(source_names(range(config.source_vocab_size or 0)))
    spec.register_target_vocabulary(target_names(range(config.target_vocab_size)))
    (spec.config.unk_token,) = source_names([config.pad_token_id])
    ends = config.start_token_id, config.end_token_id
    spec.config.bos_token, spec.config.eos_token = target_names(ends)
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.layer_norm_epsilon = config.norm_epsilon
    return spec


def _set_embedding(stack_spec: Any, tokens_spec: Any, embedding: Embedding) -> None:
    """Set tokens [V, D], positions [P, D], the scale of the tokens, the norm of the sum."""
    tokens_spec.weight = _array(embedding.tokens.weight)
    assert embedding.positions is not None
    stack_spec.position_encodings.encodings = _array(embedding.positions.table)
    stack_spec.scale_embeddings = embedding.scale != 1.0
    if embedding.norm is not None:
        _set_norm(stack_spec.layernorm_embedding, embedding.norm)


def _set_layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    """Set sub-layers, each with the norm of its residual connection.

    Query, key and value of self-attention are stacked [3 I, D]; of cross-attention, key and value
    [2 I, D], which are computed once. Outputs are [D, I], the feed-forward [F, D] and [D, F].
    """
    own, feed_forward = layer.self_attention, layer.feed_forward
    _set_linears(spec.self_attention.linear[0], own.query, own.key, own.value)
    _set_linears(spec.self_attention.linear[1], own.output)
    _set_norm(spec.self_attention.layer_norm, layer.self_attention_residual.norm)
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        _set_linears(spec.attention.linear[0], cross.query)
        _set_linears(spec.attention.linear[1], cross.key, cross.value)
        _set_linears(spec.attention.linear[2], cross.output)
        _set_norm(spec.attention.layer_norm, layer.cross_attention_residual.norm)
    assert feed_forward.gate is None
    _set_linears(spec.ffn.linear_0, feed_forward.inner)
    _set_linears(spec.ffn.linear_1, feed_forward.outer)
    _set_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _set_norm(spec: Any, norm: Norm) -> None:
    """Set gain and bias [D]; CTranslate2 requires both, so ones and zeros stand in."""
    assert isinstance(norm, LayerNorm)
    spec.gamma = np.ones(norm.size, np.float32) if norm.gain is None else _array(norm.gain)
    spec.beta = np.zeros(norm.size, np.float32) if norm.bias is None else _array(norm.bias)


def _set_linears(spec: Any, *linears: Any) -> None:
    """Set weights [out, in] and biases [out] of products of one input, stacked along out.

    Products without a bias get zeros if another has one; without any, the bias is left unset.
    """
    spec.weight = _array(torch.cat([linear.weight for linear in linears]))
    if any(linear.bias is not None for linear in linears):
        zeros = [one.weight.new_zeros(len(one.weight)) for one in linears]
        pairs = zip(linears, zeros, strict=True)
        spec.bias = _array(torch.cat([z if one.bias is None else one.bias for one, z in pairs]))


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """Return a copy, since CTranslate2 quantizes arrays in place."""
    array: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32, copy=True).numpy()
    return array
