"""The graph that shows attention, in every precision and where some attentions are in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dragoman.export import export_bundle
from dragoman.optimize.exact import exact_model
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import ModelConfig, Transformer, pad
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.runtime import Bundle, Model, load, read_bundle

from ...random_weights import random_transformer

SOURCES = [[5, 9, 17, 7, 6, 3, 11], [8, 4, 3], [2]]
TARGET = np.array([[1, 7, 9, 4], [1, 3, 3, 12], [1, 20, 6, 5]])
Weights = dict[Any, NDArray[np.float32]]


def model() -> Transformer:
    config = ModelConfig(
        source_vocab_size=23,
        target_vocab_size=29,
        encoder_layers=1,
        decoder_layers=3,
        d_model=36,
        num_heads=3,
        d_head=12,
        d_ff=40,
        norm_order="pre",
        max_source_positions=16,
        max_target_positions=12,
        dropout=0.0,
    )
    made = random_transformer(config, seed=5)
    with torch.no_grad():  # less sure of themselves than random weights are
        for attend in made.modules():
            if isinstance(attend, MultiHeadAttention):
                attend.query.weight.mul_(0.2)
    return made


def shown(opened: Model) -> Weights:
    source, mask = pad(SOURCES, 0)
    inputs: Any = {"source": source.numpy(), "source_mask": mask.numpy(), "token": TARGET}
    return dict(opened.backend.attention(inputs))


def attention(bundle: Path) -> Weights:
    with load(bundle, threads=1) as loaded:
        return shown(loaded)


Exported = tuple[Bundle, Weights]


def exported(made: Transformer, directory: Path) -> Exported:
    directory.mkdir()
    bundle = export_bundle(made, directory, name="random", attention=True)
    return bundle, attention(bundle.directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(model(), tmp_path_factory.mktemp("plain") / "bundle")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The queries of the second layer are too large for 16 bits, and the keys small for it."""
    made = model()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "decoder.layers.1." in name and "attention.query" in name:
                parameter.mul_(1e5)
            elif "decoder.layers.1." in name and "attention.key" in name:
                parameter.mul_(4e-5)
    return exported(made, tmp_path_factory.mktemp("large") / "bundle")


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Exported:
    found: Exported = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(
    ("case", "target", "precision"),
    [
        ("plain", "cpu", "int8"),
        ("plain", "cpu", "int4"),
        ("plain", "neutral", "fp16"),
        ("large", "neutral", "fp16"),
    ],
    indirect=["case"],
)
def test_weights_are_those_of_fp32_but_for_rounding(
    case: Exported, target: Any, precision: Any, tmp_path: Path
) -> None:
    bundle, expected = case
    optimize_bundle(bundle, tmp_path, target=target, precision=precision)
    found = attention(tmp_path)
    assert (
        set(found)
        == set(expected)
        == {
            "encoder_attention",
            "self_attention",
            "cross_attention",
        }
    )
    _, mask = pad(SOURCES, 0)
    for role, weights in found.items():
        assert weights.dtype == np.float32
        assert weights.shape == expected[role].shape
        real = mask.numpy() if role == "encoder_attention" else np.ones(TARGET.shape, bool)
        rows = np.moveaxis(weights, 3, 1)[real]
        np.testing.assert_allclose(rows.sum(-1), 1, atol=2e-3)
        if role == "self_attention":
            assert not np.triu(weights, 1).any()
        else:
            assert not (weights * ~mask.numpy()[:, None, None, None]).any()
        difference = np.abs(rows - np.moveaxis(expected[role], 3, 1)[real])
        assert difference.max() < (0.01 if precision == "fp16" else 0.3)


@pytest.mark.parametrize("case", ["plain", "large"], indirect=True)
def test_the_exact_form_of_16_bit_graphs_shows_attention(case: Exported, tmp_path: Path) -> None:
    bundle, expected = case
    optimize_bundle(bundle, tmp_path, target="neutral", precision="fp16")
    found = shown(exact_model(read_bundle(tmp_path), threads=1))
    assert found.keys() == expected.keys()
    _, mask = pad(SOURCES, 0)
    for role, weights in found.items():
        real = mask.numpy() if role == "encoder_attention" else np.ones(TARGET.shape, bool)
        difference = np.moveaxis(weights - expected[role], 3, 1)[real]
        assert np.abs(difference).max() < 0.01


def test_an_attention_in_fp32_casts_what_it_gets(large: Exported, tmp_path: Path) -> None:
    """What the second model is about."""
    optimize_bundle(large[0], tmp_path, target="neutral", precision="fp16")
    decoder = ir.load(tmp_path / "decoder.onnx").graph
    keys = [node.inputs[1] for node in decoder if node.op_type == "Attention"]
    makers = [key.producer() for key in keys if key is not None]
    assert [maker.op_type for maker in makers if maker is not None].count("Cast") == 2
