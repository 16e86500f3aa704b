"""Faults of the exporter: what it exports was changed after the oracle was taken."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fault import ExporterFault, Kind

Change = Callable[[Any], None]
"""Changes a model in place, without gradients."""


def _gain_forgotten(model: Any) -> None:
    model.decoder.layers[0].self_attention_residual.norm.gain.fill_(1)


def _other_epsilon(model: Any) -> None:
    model.encoder.layers[0].self_attention_residual.norm.epsilon = 1e-3


def _one_weight_off(model: Any) -> None:
    weight = model.decoder.layers[1].feed_forward.inner.weight.view(-1)
    weight[weight.abs().argmax()] *= 1.01


def _positions_one_later(model: Any) -> None:
    positions = model.decoder.embedding.positions

    def forward(position: Tensor) -> Tensor:
        following = (position + 1).clamp(max=len(positions.table) - 1)
        return F.embedding(following, positions.table)

    positions.forward = forward


def _buckets_swapped(model: Any) -> None:
    table = model.encoder.relative_positions.table
    table[[1, 2]] = table[[2, 1]]


def _bucket_moved(model: Any) -> None:
    """The boundary of the largest bucket is one distance off."""
    bucket = model.decoder.relative_positions.bucket
    step = int((bucket[1:] != bucket[:-1]).nonzero()[0])
    bucket[step] = bucket[step + 1]


def _embedding_not_scaled(model: Any) -> None:
    model.decoder.embedding.scale = 1.0


def _other_activation(function: Callable[[Tensor], Tensor]) -> Change:
    def change(model: Any) -> None:
        model.encoder.layers[1].feed_forward.activation = function

    return change


def _mask_ignored(stack: str) -> Change:
    """A stack, or its cross-attention, sees padding as if it were tokens."""

    def change(model: Any) -> None:
        module = getattr(model, stack)
        right = module.forward
        place = 1 if stack == "encoder" else 2

        def forward(*given: Any) -> Tensor:
            mask = given[place]
            seen: Tensor = right(*given[:place], mask == mask, *given[place + 1 :])
            return seen

        module.forward = forward

    return change


def _last_layer_skipped(model: Any) -> None:
    model.encoder.layers = model.encoder.layers[:-1]


def _last_norm_skipped(model: Any) -> None:
    model.decoder.norm = nn.Identity()


def _output_bias_dropped(model: Any) -> None:
    model.output.bias = None


def _untied(model: Any) -> None:
    """The projection to logits has a table of its own, in which two rows are swapped."""
    table = model.output.weight.clone()
    table[[20, 21]] = table[[21, 20]]
    model.output.weight = nn.Parameter(table)


def _generation(**changes: Any) -> Change:
    def change(model: Any) -> None:
        model.generation = dataclasses.replace(model.generation, **changes)

    return change


def _attention_too_sharp(model: Any) -> None:
    attention = model.decoder.layers[1].self_attention
    attention.scale = 1.1 / math.sqrt(attention.head_size)


def _segments_ignored(model: Any) -> None:
    embedding = model.encoder.embedding
    embedding.forward = lambda token, position, token_type: type(embedding).forward(
        embedding, token, position, token_type * 0
    )


def _first_token_pooled(model: Any) -> None:
    model.head.pooling = "cls"


def _layers_swapped(model: Any) -> None:
    """The keys of cross-attention of two layers are each other's."""
    first, second = (layer.cross_attention for layer in model.decoder.layers)
    first.key, second.key = second.key, first.key


def _fault(kind: Kind, name: str, change: Change, *bundles: str) -> ExporterFault:
    return ExporterFault(name, kind, bundles, torch.no_grad()(change))


OPERATORS: Kind = "masks and operators"
WEIGHTS: Kind = "weights and epsilons"
POSITIONS: Kind = "positions and caches"
BUCKETS: Kind = "buckets and capacity"
SETTINGS: Kind = "settings"

FAULTS: tuple[ExporterFault, ...] = (
    _fault(WEIGHTS, "a gain of the model is 1", _gain_forgotten, "t5 cpu int8", "bart cpu fp32"),
    _fault(
        WEIGHTS,
        "an epsilon of the model is 1e-3",
        _other_epsilon,
        *("bert-embedding cpu fp32", "t5 neutral fp16"),
    ),
    _fault(
        WEIGHTS,
        "one weight of the model is 1 % too large",
        _one_weight_off,
        *("bart cpu fp32", "gpt2 neutral fp16", "gpt2 cpu int8"),
    ),
    _fault(
        POSITIONS,
        "positions of the model are one later",
        _positions_one_later,
        *("bart cpu fp32", "gpt2 cpu int4"),
    ),
    _fault(BUCKETS, "two buckets of the model are swapped", _buckets_swapped, "t5 cpu fp32"),
    _fault(BUCKETS, "a bucket of the model is one distance wider", _bucket_moved, "t5 cpu int4"),
    _fault(
        OPERATORS,
        "embeddings of the model have no scale",
        _embedding_not_scaled,
        "g2p-en cpu int8",
    ),
    _fault(
        OPERATORS,
        "one layer of the model has the GELU with tanh",
        _other_activation(partial(F.gelu, approximate="tanh")),
        *("whisper cpu fp32", "bart cpu int8"),
    ),
    _fault(
        OPERATORS, "one layer of the model has GELU", _other_activation(F.gelu), "t5-odd cpu fp32"
    ),
    _fault(
        OPERATORS,
        "the model's encoder ignores the mask",
        _mask_ignored("encoder"),
        *("bert-classifier cpu fp32", "g2p-en neutral fp16"),
    ),
    _fault(
        OPERATORS,
        "the model's cross-attention ignores the mask",
        _mask_ignored("decoder"),
        "bart cpu int4",
    ),
    _fault(
        OPERATORS,
        "the last layer of the model's encoder is skipped",
        _last_layer_skipped,
        "bert-embedding cpu int8",
    ),
    _fault(OPERATORS, "the last norm of the model is skipped", _last_norm_skipped, "gpt2 cpu fp32"),
    _fault(
        OPERATORS, "attention of the model is 10 % too sharp", _attention_too_sharp, "gpt2 cpu int8"
    ),
    _fault(
        OPERATORS,
        "the model ignores segments",
        _segments_ignored,
        *("bert-classifier cpu fp32", "bert-classifier neutral fp16"),
    ),
    _fault(
        OPERATORS, "the model pools the first token", _first_token_pooled, "bert-embedding cpu fp32"
    ),
    _fault(
        WEIGHTS,
        "the bias of the model's logits is dropped",
        _output_bias_dropped,
        *("bart neutral fp32", "bart cpu int4"),
    ),
    _fault(
        WEIGHTS,
        "two rows of the model's output are swapped",
        _untied,
        *("bart cpu fp32", "gpt2 cpu int4"),
    ),
    _fault(
        WEIGHTS, "keys of two layers of the model are swapped", _layers_swapped, "whisper cpu int8"
    ),
    _fault(
        SETTINGS,
        "the model is exported with one beam",
        _generation(num_beams=1, early_stopping=False),
        "bart cpu fp32",
    ),
    _fault(
        SETTINGS,
        "the model is exported without suppressed tokens",
        _generation(suppressed_token_ids=()),
        *("whisper cpu fp32", "whisper cpu int8"),
    ),
)
"""Faults of a model's weights, operators, positions and settings."""
