"""Neutral bundles with random weights, exported once and shared by tests that only read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import HeadConfig, ModelConfig, Transformer, make_model
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision

Optimize = Callable[..., Bundle]


TIED: dict[str, object] = {"num_heads": 4, "tie_source_target": True}
ODD_HEADS: dict[str, object] = {
    "num_heads": 3,
    "d_head": 12,
    "activation": "gelu",
    "norm_order": "pre",
    "tie_target_output": False,
}
RECURRENT: dict[str, object] = {"num_heads": 4, "tie_source_target": True, "decoder_kind": "ssru"}
GATED: dict[str, object] = RECURRENT | {"decoder_kind": "gru", "additive_scores": True}
T5: dict[str, object] = {
    "num_heads": 4,
    "d_head": 16,
    "tie_source_target": True,
    "scale_embedding": False,
    "positions": "relative",
    "relative_buckets": 8,
    "relative_max_distance": 9,
    "norm_order": "pre",
    "norm": "rms",
    "gated_feed_forward": True,
    "activation": "gelu_tanh",
    **dict.fromkeys(
        (
            *("norm_bias", "query_bias", "key_bias", "value_bias"),
            *("attention_output_bias", "feed_forward_bias"),
        ),
        False,
    ),
}
SINGLE_STACK: dict[str, Any] = {
    "d_model": 64,
    "d_ff": 96,
    "num_heads": 4,
    "positions": "learned",
    "pad_token_id": 0,
    "dropout": 0.0,
}
ENCODER_ONLY: dict[str, Any] = {
    "source_vocab_size": 210,
    "target_vocab_size": 0,
    "encoder_layers": 2,
    "decoder_layers": 0,
    "max_source_positions": 21,
    "max_target_positions": 0,
    "embedding_norm": True,
    "token_types": 2,
    "head": HeadConfig(task="sequence-classification", dense_size=64, labels=("a", "b", "c")),
}
DECODER_ONLY: dict[str, Any] = {
    "source_vocab_size": 0,
    "target_vocab_size": 210,
    "encoder_layers": 0,
    "decoder_layers": 2,
    "max_source_positions": 0,
    "max_target_positions": 17,
    "norm_order": "pre",
}


@pytest.fixture(scope="session")
def neutral(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two layers per stack, heads of size 16; source, target and output are tied."""
    return _export(tmp_path_factory, TIED)


@pytest.fixture(scope="session")
def odd_heads(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Heads of size 12, which is not a multiple of 8. Pre-norm, GELU, nothing tied."""
    return _export(tmp_path_factory, ODD_HEADS)


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A recurrent decoder; heads of size 16; source, target and output are tied."""
    return _export(tmp_path_factory, RECURRENT)


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A recurrent decoder with gated units and additive scores; the rest as `recurrent`."""
    return _export(tmp_path_factory, GATED)


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Relative positions, RMSNorm, a gated feed-forward; no biases; tied."""
    return _export(tmp_path_factory, T5)


@pytest.fixture(scope="session")
def encoder_only(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two layers, heads of size 16, token types and a head of three classes."""
    return _export_single_stack(tmp_path_factory, ENCODER_ONLY)


@pytest.fixture(scope="session")
def decoder_only(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two layers, heads of size 16; 17 positions."""
    return _export_single_stack(tmp_path_factory, DECODER_ONLY)


@pytest.fixture(scope="session")
def optimize(tmp_path_factory: pytest.TempPathFactory) -> Optimize:
    def make(
        bundle: Bundle,
        precision: Precision = "fp32",
        target: str = "cpu",
        calibration: list[list[int]] | None = None,
    ) -> Bundle:
        directory: Path = tmp_path_factory.mktemp("optimized")
        optimize_bundle(
            bundle, directory, target=target, precision=precision, calibration=calibration
        )
        return read_bundle(directory)

    return make


def _export(factory: pytest.TempPathFactory, changes: dict[str, object]) -> Bundle:
    directory = factory.mktemp("neutral")
    export_bundle(random_model(changes), directory, name="random")
    return read_bundle(directory)


def _export_single_stack(factory: pytest.TempPathFactory, sizes: dict[str, Any]) -> Bundle:
    directory = factory.mktemp("single-stack")
    torch.manual_seed(6)
    model = make_model(ModelConfig(**SINGLE_STACK | sizes)).eval()
    export_bundle(model, directory, name="single-stack")
    return read_bundle(directory)


def random_model(changes: dict[str, object]) -> Transformer:
    """The model that a bundle of these tests was exported from."""
    values: dict[str, object] = {
        "source_vocab_size": 2100,
        "target_vocab_size": 2100,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_model": 64,
        "d_ff": 96,
        "max_source_positions": 20,
        "max_target_positions": 16,
        "dropout": 0.0,
    }
    torch.manual_seed(5)
    model = Transformer(ModelConfig.from_dict(values | changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gain", "relative_positions.table")):
                parameter.copy_(torch.randn_like(parameter))
    return model
