"""Models with random weights that the tests of the reference model share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.reference_model import ModelConfig, Transformer

from ..random_weights import random_transformer

MakeModel = Callable[..., Transformer]


@pytest.fixture(scope="session")
def make_config() -> Callable[..., ModelConfig]:
    """A small configuration; every field can be overridden by name."""

    def make(**changes: object) -> ModelConfig:
        values: dict[str, object] = {
            "source_vocab_size": 17,
            "target_vocab_size": 19,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "d_model": 24,
            "num_heads": 3,
            "d_ff": 40,
            "max_source_positions": 16,
            "max_target_positions": 12,
            "dropout": 0.0,
        }
        return ModelConfig.from_dict(values | changes)

    return make


@pytest.fixture(scope="session")
def make_model(make_config: Callable[..., ModelConfig]) -> MakeModel:
    """A model whose output varies; every field can be overridden by name."""

    def make(*, seed: int = 0, **changes: object) -> Transformer:
        return random_transformer(make_config(**changes), seed=seed, feed_forward_scale=2.0)

    return make
