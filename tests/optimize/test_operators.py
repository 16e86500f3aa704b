"""The list of operators is what the targets write: nothing else gets into a bundle, and nothing is
on the list without a graph that has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.reference_model import EmbeddingLayer, HeadConfig, ModelConfig, make_model
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format import onnx_graph
from dragoman.runtime.format.onnx_graph import OPERATORS, graph_problems

Optimize = Callable[..., Bundle]
Operators = set[tuple[str, str]]

SMALL = ModelConfig(
    source_vocab_size=2100,
    target_vocab_size=2100,
    encoder_layers=1,
    decoder_layers=1,
    d_model=32,
    num_heads=2,
    d_ff=32,
    activation="gelu",
    max_source_positions=8,
    max_target_positions=8,
)
SPEECH = dataclasses.replace(SMALL, source_vocab_size=None, feature_size=4, activation="relu")
GATED = dataclasses.replace(SMALL, d_head=12, gated_feed_forward=True, activation="silu")
RELATIVE = dataclasses.replace(
    SMALL,
    target_vocab_size=2103,
    positions="relative",
    norm="rms",
    norm_bias=False,
    activation="gelu_tanh",
)
ENCODER = dataclasses.replace(
    SMALL,
    target_vocab_size=0,
    decoder_layers=0,
    max_target_positions=0,
    pad_has_position=False,
    activation="tanh",
    head=HeadConfig(
        task="embedding",
        pooling=("max", "mean"),
        after_pooling=(
            EmbeddingLayer(kind="dense", size=12, activation="tanh"),
            EmbeddingLayer(kind="layer_norm"),
            EmbeddingLayer(kind="normalize"),
        ),
        truncate_dim=6,
    ),
)
POOLED = dataclasses.replace(
    ENCODER, head=HeadConfig(task="embedding", pooling=("mean_sqrt_len_tokens",))
)
RECURRENT = dataclasses.replace(SMALL, decoder_kind="ssru")
GATED_UNIT = dataclasses.replace(SMALL, decoder_kind="gru", additive_scores=True)
DECODER = dataclasses.replace(SMALL, source_vocab_size=0, encoder_layers=0, max_source_positions=0)


@pytest.fixture(scope="module")
def bundles(optimize: Optimize, tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """Of every target, every kind of precision and every kind of layer."""

    def exported(config: ModelConfig) -> Bundle:
        torch.manual_seed(0)
        directory = tmp_path_factory.mktemp("neutral")
        return export_bundle(make_model(config).eval(), directory, name="small")

    small, speech, gated, relative = map(exported, (SMALL, SPEECH, GATED, RELATIVE))
    encoder, decoder, recurrent = map(exported, (ENCODER, DECODER, RECURRENT))
    pooled, gated_unit = exported(POOLED), exported(GATED_UNIT)
    return [
        *(small, speech, gated, relative, encoder, decoder, recurrent, pooled, gated_unit),
        *(optimize(small, precision) for precision in ("fp32", "int8", "int4")),
        optimize(small, "int8", "neutral"),
        optimize(relative),
        optimize(gated, "fp16", "tensorrt-rtx"),
    ]


def operators(path: Path) -> Operators:
    """In the eyes of onnx."""
    model = onnx.load(path, load_external_data=False)
    return {(node.domain, node.op_type) for node in model.graph.node}


def test_the_list_is_what_the_targets_write(bundles: list[Bundle]) -> None:
    written: Operators = set()
    for bundle in bundles:
        assert read_bundle(bundle.directory).manifest == bundle.manifest
        for name in bundle.manifest.graphs:
            written |= operators(bundle.graph_path(name))
    listed = {(domain, name) for domain, names in OPERATORS.items() for name in names}
    assert written == listed
    assert all(purpose for names in OPERATORS.values() for purpose in names.values())


def test_no_operator_of_any_target_is_overlooked(
    bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that onnx finds in a graph is missed when it is not on the list."""
    for bundle in bundles:
        size = (bundle.directory / "weights.bin").stat().st_size
        for graph in bundle.manifest.model_graphs:
            data = bundle.graph_path(graph).read_bytes()
            for domain, name in operators(bundle.graph_path(graph)):
                key = (domain.encode(), name.encode())
                with monkeypatch.context() as patch:
                    patch.setattr(onnx_graph, "_ALLOWED", onnx_graph._ALLOWED - {key})
                    (problem,) = graph_problems(data, size)
                assert name in problem
