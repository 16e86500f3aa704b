"""Models with random weights, and bundles exported once for all tests that only read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.exporter import ExportedGraph
from dragoman.reference_model import ModelConfig, Transformer, preset
from dragoman.runtime.format.manifest import Manifest

MakeModel = Callable[..., Transformer]


def randomized(config: ModelConfig, seed: int) -> Transformer:
    """No two weights alike, so that none can stand in for another."""
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gain"):
                parameter.copy_(torch.randn_like(parameter))
            elif parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            elif name.endswith(("query.weight", "key.weight")):
                parameter.mul_(3.0)
    return model


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
        return randomized(ModelConfig.from_dict(values | changes), seed)

    return make


@pytest.fixture(scope="session")
def tiny() -> Transformer:
    return randomized(preset("tiny", source_vocab_size=40, target_vocab_size=50), seed=1)


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
