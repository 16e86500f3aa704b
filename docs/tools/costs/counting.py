"""Counts the multiply-accumulates, weights and cached numbers of each part of a model.

Only matrix products are counted, since other operators grow only with the size of hidden states or
scores. Convolutions of speech models and heads of encoders are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.reference_model import ModelConfig

Part = Literal[
    "projections",
    "self-attention",
    "cross-attention",
    "feed-forward",
    "cross keys and values",
    "output",
    "the rest",
]
"""projections: to queries, keys and values of self-attention, to queries of cross-attention, and
from the heads' outputs of both; those of a recurrent unit. The rest: what is not counted, but takes
time."""

PRODUCTS_OF_UNITS = {"ssru": 2, "gru": 6}
"""Matrices [D, D] of a recurrent unit."""


@dataclass(frozen=True)
class Cost:
    """The cost of a part over all layers.

    Attributes:
        operations: multiply-accumulates
        weights: numbers in matrices, which are read once for all rows of a batch
        cached: numbers read from cached keys and values
    """

    part: Part
    operations: int
    weights: int = 0
    cached: int = 0


def encoder(config: ModelConfig, source: int, *, rows: int = 1) -> list[Cost]:
    """Count the encoder, and the cross keys and values, for sources of one length."""
    layers, positions = config.encoder_layers, rows * source
    costs = [
        _product("projections", _self_projections(config), layers, positions),
        Cost("self-attention", layers * rows * _scores(config, source * source)),
        _product("feed-forward", _feed_forward(config), layers, positions),
    ]
    if config.has_decoder:
        keys_values = config.d_model * config.num_heads * (config.head_size + config.value_size)
        costs.append(
            _product("cross keys and values", keys_values, config.decoder_layers, positions)
        )
    return costs


def step(config: ModelConfig, source: int, position: int, *, rows: int = 1) -> list[Cost]:
    """Count a decoder step with all rows at the same position.

    Args:
        source: source tokens per row; 0 without an encoder
        position: position of the token, from 0
    """
    layers = config.decoder_layers
    projections = PRODUCTS_OF_UNITS.get(config.decoder_kind, 0) * config.d_model**2
    if not config.is_recurrent:
        projections = _self_projections(config)
    if config.has_encoder:
        projections += _query_output(config)
    costs = [_product("projections", projections, layers, rows)]
    if not config.is_recurrent:
        keys = rows * _scores(config, position + 1)
        cached = layers * rows * _scores(config, position)
        costs.append(Cost("self-attention", layers * keys, cached=cached))
    if config.has_encoder:
        of_source = layers * rows * _scores(config, source)
        costs.append(Cost("cross-attention", of_source, cached=of_source))
    output = config.d_model * config.target_vocab_size
    return [
        *costs,
        _product("feed-forward", _feed_forward(config), layers, rows),
        _product("output", output, 1, rows),
    ]


def total(costs: Sequence[Cost]) -> Cost:
    """Add up the costs of parts."""
    return Cost(
        "the rest",
        sum(cost.operations for cost in costs),
        sum(cost.weights for cost in costs),
        sum(cost.cached for cost in costs),
    )


def _product(part: Part, weights: int, layers: int, positions: int) -> Cost:
    """Count the products of each position with the matrices of every layer."""
    return Cost(part, layers * weights * positions, layers * weights)


def _scores(config: ModelConfig, pairs: int) -> int:
    """Count the products q k^T and the weighted sums of values for query-key pairs.

    The same number of cached numbers is in as many keys and values.
    """
    return config.num_heads * (config.head_size + config.value_size) * pairs


def _query_output(config: ModelConfig) -> int:
    """Return the size of W^Q and W^O, and of W of bilinear scores."""
    width = config.num_heads * (config.head_size + config.value_size)
    bilinear = config.num_heads * config.head_size**2 if config.bilinear_scores else 0
    return config.d_model * width + bilinear


def _self_projections(config: ModelConfig) -> int:
    """Return the size of W^Q, W^K, W^V and W^O."""
    keys_values = config.d_model * config.num_heads * (config.head_size + config.value_size)
    return _query_output(config) + keys_values


def _feed_forward(config: ModelConfig) -> int:
    return (3 if config.gated_feed_forward else 2) * config.d_model * config.d_ff
