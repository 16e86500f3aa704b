"""Models with random weights that the tests of the reference model share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dragoman.reference_model import ModelConfig, Transformer

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
    """A model in evaluation mode whose every parameter matters.

    Gains and biases are random, attention is sharpened and the feed-forward products are scaled
    up: outputs then depend on the source and on the whole prefix, instead of repeating one token.
    """

    def make(*, seed: int = 0, **changes: object) -> Transformer:
        torch.manual_seed(seed)
        model = Transformer(make_config(**changes)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("gain"):
                    parameter.copy_(torch.randn_like(parameter))
                elif parameter.dim() == 1:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
                elif name.endswith(("query.weight", "key.weight")):
                    parameter.mul_(3.0)
                elif name.endswith(("inner.weight", "outer.weight")):
                    parameter.mul_(2.0)
        return model

    return make
