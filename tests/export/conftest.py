"""Models with random weights, and bundles exported once for all tests that only read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman.export import export_bundle
from dragoman.export.exporter import ExportedGraph
from dragoman.reference_model import ModelConfig, Transformer, preset
from dragoman.runtime.format.manifest import Manifest

from ..random_weights import random_transformer

MakeModel = Callable[..., Transformer]


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """A model of one layer a stack; every field can be overridden by name."""

    def make(*, seed: int = 0, **changes: object) -> Transformer:
        values: dict[str, object] = {
            "source_vocab_size": 23,
            "target_vocab_size": 29,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "d_model": 32,
            "num_heads": 2,
            "d_ff": 40,
            "max_source_positions": 16,
            "max_target_positions": 12,
            "dropout": 0.0,
        }
        return random_transformer(ModelConfig.from_dict(values | changes), seed=seed)

    return make


@pytest.fixture(scope="session")
def tiny() -> Transformer:
    return random_transformer(preset("tiny", source_vocab_size=40, target_vocab_size=50), seed=1)


@pytest.fixture(scope="session")
def export_to(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Transformer], tuple[Path, Manifest]]:
    def export(model: Transformer) -> tuple[Path, Manifest]:
        directory = tmp_path_factory.mktemp("bundle")
        return directory, export_bundle(model, directory, name="test").manifest

    return export


@pytest.fixture(scope="session")
def tiny_bundle(
    tiny: Transformer, export_to: Callable[..., tuple[Path, Manifest]]
) -> tuple[Path, Manifest]:
    """The tiny preset with its default ties: target and output share one embedding."""
    return export_to(tiny)


@pytest.fixture
def encoder(tiny_bundle: tuple[Path, Manifest]) -> ExportedGraph:
    """The tiny encoder as written, with the contract's view of it; free to be edited."""
    directory, manifest = tiny_bundle
    spec = manifest.graphs["encoder"]
    return ExportedGraph(ir.load(directory / spec.file), spec)


@pytest.fixture
def decoder(tiny_bundle: tuple[Path, Manifest]) -> ExportedGraph:
    """The tiny decoder step as written, with the contract's view of it; free to be edited."""
    directory, manifest = tiny_bundle
    spec = manifest.graphs["decoder"]
    return ExportedGraph(ir.load(directory / spec.file), spec)
