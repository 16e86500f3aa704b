"""CTranslate2 computes what the reference model computes, whatever the model's options are."""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from dragoman.benchmarks.models.random_checkpoint import write_random_large_model
from dragoman.benchmarks.peers.ctranslate2 import convert
from dragoman.benchmarks.peers.ctranslate2_runtime import (
    CTranslate2Peer,
    load_translator,
    prepare_translator,
)
from dragoman.benchmarks.peers.interface import Batch
from dragoman.errors import DragomanError
from dragoman.reference_model import ModelConfig, Transformer, greedy_uncached, pad
from dragoman.reference_model.config import Activation

from ..random_weights import random_transformer

ctranslate2: Any = importlib.import_module("ctranslate2")
pytestmark = pytest.mark.peers

STEPS = 20
SIZES: dict[str, Any] = {
    "source_vocab_size": 37,
    "target_vocab_size": 53,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 48,
    "max_source_positions": 20,
    "max_target_positions": 30,
}
NO_BIASES = dict.fromkeys(
    ("query_bias", "key_bias", "value_bias", "attention_output_bias", "feed_forward_bias"), False
)
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_order": "pre"},
    "untied": {"tie_target_output": False},
    "one-embedding": {"source_vocab_size": 53, "tie_source_target": True},
    "learned-positions-gelu": {"positions": "learned", "activation": "gelu"},
    "gelu-tanh-logits-bias": {"activation": "gelu_tanh", "logits_bias": True},
    "pre-norm-silu-untied": {
        "norm_order": "pre",
        "activation": "silu",
        "tie_target_output": False,
        "logits_bias": True,
    },
    "embedding-norm-unscaled": {"embedding_norm": True, "scale_embedding": False},
    "bare-norm": {"norm_gain": False, "norm_bias": False, "norm_epsilon": 0.1},
    "quick-gelu": {"activation": "quick_gelu"},
    "tanh": {"activation": "tanh"},
    "no-biases": NO_BIASES,
    "no-key-bias": {"key_bias": False},
    "wide-heads": {"d_head": 16},
    "narrow-heads-pre-norm": {"d_head": 3, "norm_order": "pre"},
    "tokens-outside-the-source": {
        "source_vocab_size": 7,
        "start_token_id": 52,
        "end_token_id": 51,
        "pad_token_id": 4,
    },
    "start-is-padding": {"start_token_id": 0, "pad_token_id": 0},
}
REFUSED: dict[str, dict[str, Any]] = {
    "feature_size": {"source_vocab_size": None, "feature_size": 8},
    "gated_feed_forward": {"gated_feed_forward": True},
    "norm": {"norm": "rms", "norm_bias": False},
    "final_norm": {"final_norm": True},
    "positions": {
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 16,
    },
    "pad_has_position": {"pad_has_position": False},
    "d_value": {"d_value": 5},
    "token_types": {"token_types": 2},
    "score_scale": {"score_scale": 0.5},
    "bilinear_scores": {"bilinear_scores": True},
    "additive_scores": {"additive_scores": True},
    "decoder_kind": {"decoder_kind": "ssru"},
}
"""Options that are not converted."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are slower on more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_model(config: ModelConfig, seed: int = 0) -> Transformer:
    """Weights with which greedy output varies.

    Sharper attention would make rounding errors visible: with queries and keys scaled by 8 instead
    of 3, both sides differ from fp64 by up to 2e-3.
    """
    return random_transformer(config, seed=seed)


def ragged_sources(config: ModelConfig) -> list[list[int]]:
    """Sources of every length, including ones that CTranslate2 would take for empty by name."""
    choose = random.Random(2)
    tokens = range(config.source_vocab_size or 0)
    special = [token for token in (config.start_token_id, config.end_token_id) if token in tokens]
    return [choose.choices(tokens, k=length) for length in (20, 1, 7, 13, 20, 9)] + [
        [*special[-1:], 5],
        [*special, 5],
    ]


def is_telling(model: Transformer, sources: list[list[int]], rows: list[list[int]]) -> bool:
    """Rows differ, tokens within them too, and no choice is so close that rounding turns it."""
    different_rows = len({tuple(row) for row in rows})
    different_tokens = sum(len(set(row)) for row in rows)
    if different_rows <= len(rows) // 2 or different_tokens < 2 * len(rows):
        return False
    source, source_mask = pad(sources, model.config.pad_token_id)
    target, target_mask = pad([[model.config.start_token_id, *row[:-1]] for row in rows], 0)
    with torch.inference_mode():
        best, second = model(source, source_mask, target).topk(2).values.unbind(-1)
    return bool((best - second)[target_mask].min() > 1e-3)


def telling_model(config: ModelConfig) -> tuple[Transformer, list[list[int]], list[list[int]]]:
    """A random model, sources, and the reference's output for them."""
    sources = ragged_sources(config)
    for seed in range(100):
        model = random_model(config, seed)
        expected = greedy_uncached(model, sources, STEPS)
        if is_telling(model, sources, expected):
            return model, sources, expected
    raise AssertionError("random weights no longer give output that varies")


def without_end(rows: list[list[int]], end_token_id: int) -> list[list[int]]:
    return [row[:-1] if row[-1] == end_token_id else row for row in rows]


def load(model: Transformer, directory: Path) -> CTranslate2Peer:
    convert(model, directory)
    return CTranslate2Peer(directory, threads=1)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_greedy_ids_are_those_of_the_reference(options: dict[str, Any], tmp_path: Path) -> None:
    model, sources, expected = telling_model(ModelConfig(**SIZES | options))
    found = load(model, tmp_path).generate(sources, STEPS)
    assert found == without_end(expected, model.config.end_token_id)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_log_probabilities_are_those_of_the_reference(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(ModelConfig(**SIZES | options))
    source = ragged_sources(model.config)[0]
    target = [3, 9, 27, 28, 31, 40, 11, model.config.end_token_id]
    load(model, tmp_path)
    scored = ctranslate2.Translator(str(tmp_path), intra_threads=1).score_batch(
        [[f"s{token}" for token in source]], [[f"t{token}" for token in target[:-1]]]
    )
    prefix = torch.tensor([[model.config.start_token_id, *target[:-1]]])
    with torch.inference_mode():
        logits = model(*pad([source], 0), prefix)[0]
    expected = logits.log_softmax(-1)[range(len(target)), target]
    torch.testing.assert_close(torch.tensor(scored[0].log_probs), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_rows_end_at_different_steps(norm_order: str, tmp_path: Path) -> None:
    model, sources, endless = telling_model(ModelConfig(**SIZES | {"norm_order": norm_order}))

    def lengths(end: int) -> set[int]:
        return {row.index(end) if end in row else STEPS for row in endless}

    end = max(range(model.config.target_vocab_size), key=lambda token: len(lengths(token)))
    assert len(lengths(end)) > 2
    model.config = model.config.replace(end_token_id=end)
    expected = greedy_uncached(model, sources, STEPS)
    peer = load(model, tmp_path)
    assert peer.generate(sources, STEPS) == without_end(expected, model.config.end_token_id)
    assert [len(row) for row in peer.generate(sources, STEPS, STEPS)] == [STEPS] * len(sources)


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_not_converted(name: str, tmp_path: Path) -> None:
    model = Transformer(ModelConfig(**SIZES | REFUSED[name]))
    with pytest.raises(DragomanError, match=f"expected a model .*, found {name}="):
        convert(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_every_option_of_the_model_is_tried() -> None:
    combinations = [*OPTIONS.values(), *REFUSED.values()]
    of_training = {"dropout", "attention_dropout", "feed_forward_dropout"}
    of_encoders = {"head", "encoder_order", "d_embedding"}
    tried = SIZES.keys() | {name for options in combinations for name in options}
    tried |= of_training | of_encoders
    assert {field.name for field in dataclasses.fields(ModelConfig)} <= tried
    activations = {options.get("activation", "relu") for options in OPTIONS.values()}
    assert activations == set(get_args(Activation))


def test_quantizing_is_smaller_and_leaves_the_model_alone(tmp_path: Path) -> None:
    model = random_model(ModelConfig(**SIZES))
    before = [parameter.clone() for parameter in model.parameters()]
    convert(model, tmp_path / "fp32")
    convert(model, tmp_path / "int8", quantization="int8")
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)
    fp32, int8 = ((tmp_path / name / "model.bin").stat().st_size for name in ("fp32", "int8"))
    assert int8 < fp32 / 2
    peer = CTranslate2Peer(tmp_path / "int8", threads=1)
    assert peer.compute_type == "int8_float32"
    sources = ragged_sources(model.config)
    assert [len(row) for row in peer.generate(sources, STEPS, STEPS)] == [STEPS] * len(sources)


def test_errors_of_conversion_and_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(ModelConfig(**SIZES))
    with pytest.raises(DragomanError, match="int3 is not a valid quantization"):
        convert(model, tmp_path / "new", quantization="int3")
    assert not (tmp_path / "new").exists()
    with pytest.raises(DragomanError, match="cannot load"):
        CTranslate2Peer(tmp_path / "new", threads=1)
    convert(model, tmp_path / "new")
    with pytest.raises(DragomanError, match="new or empty directory"):
        convert(model, tmp_path / "new")
    with pytest.raises(DragomanError, match="float13"):
        CTranslate2Peer(tmp_path / "new", threads=1, compute_type="float13")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(DragomanError, match=r"pip install --group peers$"):
        convert(model, tmp_path / "other")


@pytest.mark.parametrize("rows", [1, 7])
def test_its_own_converter_reads_a_large_checkpoint(rows: int, tmp_path: Path) -> None:
    """As Hugging Face decodes it."""
    transformers = importlib.import_module("transformers")
    write_random_large_model("nllb-tiny", tmp_path / "checkpoint")
    directory = prepare_translator(tmp_path / "checkpoint", tmp_path / "new", mode="float32")
    sources = [list(range(3, 9 + row)) for row in range(rows)]
    found = load_translator(directory, 1, mode="float32")(Batch(sources, 9))
    model = transformers.M2M100ForConditionalGeneration.from_pretrained(
        tmp_path / "checkpoint", dtype=torch.float32
    ).eval()
    for source, tokens in zip(sources, found, strict=True):
        output = model.generate(
            torch.tensor([source]), num_beams=1, min_new_tokens=9, max_new_tokens=9
        )
        assert tokens == output[0, 1:].tolist()
