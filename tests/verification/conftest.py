"""Models with random weights whose output varies, and bundles made from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.export import export_bundle
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.runtime import Model, load

from ..random_weights import random_transformer

MakeModel = Callable[..., Transformer]


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """A model whose output varies; every field can be overridden by name."""

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
        config = ModelConfig.from_dict(values | changes)
        return random_transformer(config, seed=seed, feed_forward_scale=2.0)

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
