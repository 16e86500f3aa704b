"""Models with random weights whose output varies, and bundles made from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.runtime import Model, load

MakeModel = Callable[..., Transformer]


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """A model whose every weight matters; every field can be overridden by name.

    Gains of either sign and sharp attention: outputs then depend on the source and on the whole
    prefix, instead of repeating one token.
    """

    def make(*, seed: int = 0, **changes: object) -> Transformer:
        values: dict[str, object] = {
            "source_vocab_size": 17,
            "target_vocab_size": 19,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "d_model": 24,
            "num_heads": 3,
            "d_ff": 40,
            "max_source_positions": 16,
            "max_target_positions": 12,
            "dropout": 0.0,
        }
        torch.manual_seed(seed)
        model = Transformer(ModelConfig.from_dict(values | changes)).eval()
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


@pytest.fixture(scope="session")
def make_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Transformer], Model]:
    def make(model: Transformer) -> Model:
        directory: Path = tmp_path_factory.mktemp("bundle")
        export_bundle(model, directory, name="test")
        return load(directory, threads=1)

    return make


@pytest.fixture(scope="session")
def make_sources() -> Callable[..., list[list[int]]]:
    """Random sources of the given lengths."""

    def make(lengths: list[int], vocabulary: int = 17) -> list[list[int]]:
        generator = random.Random(sum(lengths))
        return [[generator.randrange(vocabulary) for _ in range(n)] for n in lengths]

    return make


@pytest.fixture(scope="session")
def reference(make_model: MakeModel) -> Transformer:
    """The model that `bundle` was made from: two decoder layers."""
    return make_model(norm_order="pre", decoder_layers=2, seed=2)


@pytest.fixture(scope="session")
def bundle(reference: Transformer, make_bundle: Callable[[Transformer], Model]) -> Model:
    return make_bundle(reference)
