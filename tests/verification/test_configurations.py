"""The promise: whatever the model's configuration, its bundle gives the oracle's tokens, all of
them, and its logits within 1e-4."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import ModelConfig, Transformer, greedy_uncached, pad
from dragoman.runtime import Model, load
from dragoman.runtime.format.manifest import Precision

MakeModel = Callable[..., Transformer]
MakeSources = Callable[..., list[list[int]]]

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "as published: post-norm, sinusoidal, relu, output tied": {
        "encoder_layers": 2,
        "decoder_layers": 2,
    },
    "pre-norm, output tied, bias on logits": {
        "norm_order": "pre",
        "logits_bias": True,
        "encoder_layers": 2,
        "decoder_layers": 2,
    },
    "pre-norm, learned positions, gelu_tanh, a deep decoder": {
        "norm_order": "pre",
        "positions": "learned",
        "activation": "gelu_tanh",
        "decoder_layers": 3,
    },
    "nothing tied, bias on logits, silu, one head, larger than the model": {
        "tie_target_output": False,
        "logits_bias": True,
        "activation": "silu",
        "norm_order": "pre",
        "d_head": 32,
        "num_heads": 1,
        "d_model": 20,
        "d_ff": 64,
    },
    "source, target and output tied, heads smaller than d_model / heads, a deep encoder": {
        "source_vocab_size": 19,
        "tie_source_target": True,
        "norm_order": "pre",
        "d_head": 5,
        "num_heads": 4,
        "encoder_layers": 3,
    },
    "source and target tied, output not, bias on logits, tanh, post-norm and one more at the end": {
        "source_vocab_size": 19,
        "tie_source_target": True,
        "tie_target_output": False,
        "logits_bias": True,
        "activation": "tanh",
        "final_norm": True,
    },
    "no bias anywhere": {
        "query_bias": False,
        "key_bias": False,
        "value_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
        "norm_bias": False,
        "tie_target_output": False,
        "decoder_layers": 2,
    },
    "no gain, key without bias, as Whisper's": {
        "norm_gain": False,
        "key_bias": False,
        "norm_order": "pre",
        "activation": "gelu",
        "positions": "learned",
        "tie_target_output": False,
    },
    "neither gain nor bias of norms, wide feed-forward, small values, another scale": {
        "norm_gain": False,
        "norm_bias": False,
        "norm_order": "pre",
        "d_ff": 96,
        "norm_epsilon": 1e-3,
        "tie_target_output": False,
        "d_value": 5,
        "d_head": 8,
        "score_scale": 0.3,
        "decoder_layers": 2,
    },
    "as BART: embedding norm, learned positions, started with the end token": {
        "embedding_norm": True,
        "positions": "learned",
        "scale_embedding": False,
        "activation": "gelu",
        "source_vocab_size": 19,
        "tie_source_target": True,
        "start_token_id": 2,
    },
    "vocabularies far apart, other special tokens, started with padding, bilinear scores": {
        "source_vocab_size": 67,
        "target_vocab_size": 11,
        "pad_token_id": 10,
        "start_token_id": 10,
        "end_token_id": 7,
        "norm_order": "pre",
        "tie_target_output": False,
        "bilinear_scores": True,
        "score_scale": 1.0,
        "d_head": 8,
    },
    "as T5: RMSNorm, gated feed-forward, relative positions, nothing scaled": {
        "norm": "rms",
        "norm_bias": False,
        "norm_order": "pre",
        "gated_feed_forward": True,
        "feed_forward_bias": False,
        "activation": "gelu_tanh",
        "positions": "relative",
        "relative_buckets": 6,
        "relative_max_distance": 9,
        "scale_embedding": False,
        "decoder_layers": 2,
    },
    "recurrent decoder, post-norm": {
        "decoder_kind": "ssru",
        "decoder_layers": 2,
    },
    "recurrent decoder, pre-norm, learned positions, nothing tied, no biases in attention": {
        "decoder_kind": "ssru",
        "norm_order": "pre",
        "positions": "learned",
        "tie_target_output": False,
        "query_bias": False,
        "d_head": 5,
    },
    "recurrent decoder with gates and additive scores, as Bahdanau's": {
        "decoder_kind": "gru",
        "num_heads": 1,
        "additive_scores": True,
    },
    "recurrent decoder with gates and bilinear scores, pre-norm": {
        "decoder_kind": "gru",
        "norm_order": "pre",
        "bilinear_scores": True,
        "d_head": 5,
    },
    "as M2M100: padding without a position": {
        "pad_has_position": False,
        "positions": "learned",
        "norm_order": "pre",
        "activation": "quick_gelu",
        "start_token_id": 0,
    },
}
"""Each value of each switch, with both orders of norms where the order matters to it."""

BATCHES = [[1], [16], [9, 9], [5, 1, 16, 9, 2, 12, 3]]
"""Source lengths; 16 is all that the models take."""


@dataclass(frozen=True)
class Case:
    model: Transformer
    bundle: Model
    batches: list[list[list[int]]]


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def exported(
    request: pytest.FixtureRequest,
    make_model: MakeModel,
    make_bundle: Callable[[Transformer], Model],
) -> tuple[Transformer, Model]:
    model = make_model(**CONFIGURATIONS[request.param])
    return model, make_bundle(model)


@pytest.fixture(scope="module", params=["neutral", "cpu"])
def case(
    request: pytest.FixtureRequest,
    exported: tuple[Transformer, Model],
    make_sources: MakeSources,
    tmp_path_factory: pytest.TempPathFactory,
) -> Case:
    model, bundle = exported
    if request.param == "cpu":
        bundle = optimized(bundle, tmp_path_factory.mktemp("cpu"), "fp32")
    vocabulary = model.config.source_vocab_size
    return Case(model, bundle, [make_sources(lengths, vocabulary) for lengths in BATCHES])


def optimized(bundle: Model, directory: Path, precision: Precision, target: str = "cpu") -> Model:
    optimize_bundle(bundle.bundle, directory, target=target, precision=precision)
    return load(directory, threads=1)


def test_free_running_tokens_are_the_oracles(case: Case) -> None:
    end, capacity = case.model.config.end_token_id, case.model.config.max_target_positions
    outputs: list[list[int]] = []
    for sources in case.batches:
        for limit in (1, 5, capacity):
            expected = greedy_uncached(case.model, sources, limit)
            results = case.bundle.generate(sources, max_new_tokens=limit)
            found = [
                [*result.tokens, end] if result.finish_reason == "end" else list(result.tokens)
                for result in results
            ]
            assert found == expected
        outputs += expected
    # The comparison would mean little if the output did not depend on the input.
    assert len({tuple(output) for output in outputs}) >= 4
    assert len({token for output in outputs for token in output}) >= 4
    assert sum(len(set(output)) > 1 for output in outputs) >= 4
    assert max(len(output) for output in outputs) == capacity


def test_rows_that_end_early_leave_the_others_alone(case: Case) -> None:
    """Batches of one to seven, the capacity of each set by its longest row."""
    sources = case.batches[-1]
    end = case.model.config.end_token_id
    for size in (1, 3, 7):
        results = case.bundle.generate(sources, max_batch_size=size)
        expected = greedy_uncached(case.model, sources, case.model.config.max_target_positions)
        assert [list(result.tokens) for result in results] == [
            row[:-1] if row[-1] == end else row for row in expected
        ]


def test_teacher_forced_logits_are_within_1e_4(case: Case) -> None:
    config = case.model.config
    generator = torch.Generator().manual_seed(0)
    for sources in case.batches:
        source, mask = pad(sources, config.pad_token_id)
        shape = (len(sources), config.max_target_positions)
        target = torch.randint(0, config.target_vocab_size, shape, generator=generator)
        with torch.inference_mode():
            expected = case.model(source, mask, target).numpy()
        found = case.bundle.backend.score(source.numpy(), mask.numpy(), target.numpy())
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_cross_keys_and_values_are_within_1e_4(case: Case) -> None:
    for sources in case.batches:
        source, mask = pad(sources, case.model.config.pad_token_id)
        rows = mask.numpy()
        with torch.inference_mode():
            cross = case.model.encode(source, mask)
        found = case.bundle.backend.encode(source.numpy(), rows)
        assert len(found) == 2 * case.model.config.decoder_layers
        for layer, pair in enumerate(cross):
            for part, expected in zip(("key", "value"), pair, strict=True):
                np.testing.assert_allclose(
                    found[f"cross_{part}_{layer}"].transpose(0, 2, 1, 3)[rows],
                    expected.numpy().transpose(0, 2, 1, 3)[rows],
                    atol=1e-4,
                    rtol=0,
                )


def test_log_probabilities_are_the_models(case: Case) -> None:
    """Their sum over the generated tokens, the end token's included."""
    config = case.model.config
    for source, result in zip(
        case.batches[-1], case.bundle.generate(case.batches[-1]), strict=True
    ):
        tokens = list(result.tokens) + [config.end_token_id] * (result.finish_reason == "end")
        forced = torch.tensor([[config.start_token_id, *tokens[:-1]]])
        row = torch.tensor([source])
        with torch.inference_mode():
            logits = case.model(row, torch.ones_like(row, dtype=torch.bool), forced)[0]
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(tokens)), tokens]
        assert result.log_probability == pytest.approx(float(chosen.sum()), abs=1e-3)


ALLOWED: dict[tuple[str, Precision], float] = {
    ("cpu", "int8"): 0.15,
    ("cpu", "int4"): 0.4,
    ("neutral", "fp16"): 0.01,
    ("neutral", "int4"): 0.4,
}
"""Loose bounds, since the weights are random; a wrong scale, axis or order gives about 1."""

# Each configuration with two of the four: cpu int8 and neutral fp16, or int4 for both targets.
FEWER_BITS = [
    (configuration, target, precision)
    for index, configuration in enumerate(CONFIGURATIONS)
    for target, precision in list(ALLOWED)[index % 2 :: 2]
]


@pytest.mark.parametrize(
    "exported, target, precision", FEWER_BITS, indirect=["exported"], scope="module"
)
def test_logits_with_fewer_bits_are_near(
    exported: tuple[Transformer, Model],
    make_sources: MakeSources,
    tmp_path: Path,
    target: str,
    precision: Precision,
) -> None:
    model, neutral = exported
    allowed = ALLOWED[target, precision]
    config = model.config
    bundle = optimized(neutral, tmp_path, precision, target)
    source, mask = pad(make_sources(BATCHES[-1], config.source_vocab_size), config.pad_token_id)
    generator = torch.Generator().manual_seed(0)
    shape = (len(source), config.max_target_positions)
    forced = torch.randint(0, config.target_vocab_size, shape, generator=generator)
    with torch.inference_mode():
        expected = model(source, mask, forced).numpy()
    found = bundle.backend.score(source.numpy(), mask.numpy(), forced.numpy())
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    if config.gated_feed_forward and precision != "fp16":  # two rounded products, multiplied
        allowed *= 2**0.5
    assert 0 < error <= allowed
    assert weight_bytes(bundle) < (0.52 if precision == "fp16" else 0.4) * weight_bytes(neutral)


def weight_bytes(model: Model) -> int:
    """The descriptions of graphs are much of the size of such small bundles. The weights of a GRU
    stay in fp32."""
    graphs = [ir.load(model.bundle.graph_path(name)).graph for name in ("encoder", "decoder")]
    return sum(
        value.const_value.nbytes
        for graph in graphs
        for value in graph.initializers.values()
        if value.const_value is not None and all(user.op_type != "GRU" for user, _ in value.uses())
    )


def test_the_configurations_cover_every_switch() -> None:
    """A switch that no configuration turns is a switch that nothing here tests."""
    turned = {name for changes in CONFIGURATIONS.values() for name in changes}
    untested = {"max_source_positions", "max_target_positions"}
    untested |= {"dropout", "attention_dropout", "feed_forward_dropout"}  # in training only
    untested |= {"feature_size"}  # a source of another kind: tests/runtime/speech
    untested |= {"head", "token_types", "d_embedding", "encoder_order"}  # of encoder-only models:
    # see tests/export/families/test_encoders.py
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    assert fields - turned == untested
    assert {c.get("activation", "relu") for c in CONFIGURATIONS.values()} == {
        "relu",
        "gelu",
        "gelu_tanh",
        "quick_gelu",
        "silu",
        "tanh",
    }
