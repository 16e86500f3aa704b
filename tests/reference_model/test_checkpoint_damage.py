"""Damaged checkpoints: every problem is reported, and no other exception is raised."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman import DragomanError
from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    Transformer,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)

MakeModel = Callable[..., Transformer]

FIRST = "encoder.embedding.tokens.weight"
QUERY = "encoder.layers.0.self_attention.query.weight"
KEY = "decoder.layers.1.cross_attention.key.bias"
GAIN = "decoder.layers.0.feed_forward_residual.norm.gain"
INNER = "decoder.layers.0.feed_forward.inner.weight"


@pytest.fixture
def saved(make_model: MakeModel, tmp_path: Path) -> Path:
    save_checkpoint(make_model(), tmp_path)
    return tmp_path


def problems_of(directory: Path) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(directory)
    assert str(directory) in str(caught.value)
    assert all(problem in str(caught.value) for problem in caught.value.problems[:9])
    return caught.value.problems


def test_all_problems_of_the_weights_are_reported_at_once(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights[FIRST], weights[GAIN]
    weights["decoder.extra"] = torch.zeros(1)
    weights["other"] = torch.zeros(2)
    weights[QUERY] = torch.zeros(24, 23)
    weights[KEY][3] = math.nan
    weights[KEY][5] = -math.inf
    weights[INNER] = weights[INNER].to(torch.int32)
    save_file(weights, saved / "model.safetensors")
    assert problems_of(saved) == sorted(
        [
            f"missing weight {FIRST}",
            f"missing weight {GAIN}",
            "unknown weight decoder.extra",
            "unknown weight other",
            f"{QUERY} must have shape [24, 24], found [24, 23]",
            f"{KEY} has 2 of 24 values that are NaN or infinite",
            f"{INNER} must be floating point, found torch.int32",
        ]
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_value_that_is_not_finite_is_reported(saved: Path, value: float) -> None:
    weights = load_file(saved / "model.safetensors")
    weights[INNER][-1, -1] = value
    save_file(weights, saved / "model.safetensors")
    assert problems_of(saved) == [f"{INNER} has 1 of 960 values that are NaN or infinite"]


def test_a_value_too_large_for_fp32_is_reported(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    weights[INNER] = torch.full((40, 24), 1e300, dtype=torch.float64)
    save_file(weights, saved / "model.safetensors")
    assert problems_of(saved) == [f"{INNER} has 960 of 960 values that are NaN or infinite"]


def test_eight_bit_weights_load_or_are_reported(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    weights[INNER] = weights[INNER].to(torch.float8_e4m3fn)
    save_file(weights, saved / "model.safetensors")
    try:
        load_checkpoint(saved)
    except DragomanError as error:
        assert INNER in str(error)


def test_refused_weights_leave_the_model_unchanged(make_model: MakeModel, saved: Path) -> None:
    model = make_model(seed=5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    weights = load_file(saved / "model.safetensors")
    weights[KEY][0] = math.nan
    with pytest.raises(CheckpointError, match="here"):
        load_weights(model, weights, origin=Path("here"))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_weight_file_is_reported(saved: Path, keep: int) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    (problem,) = problems_of(saved)
    assert "not a whole safetensors file" in problem


@pytest.mark.parametrize("content", [b"\xff" * 64, b"PK\x03\x04" + bytes(64), b"{}" * 40])
def test_a_file_of_another_kind_is_reported(saved: Path, content: bytes) -> None:
    (saved / "model.safetensors").write_bytes(content)
    (problem,) = problems_of(saved)
    assert "not a whole safetensors file" in problem


def test_missing_files_are_reported(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    (problem,) = problems_of(saved)
    assert "found no model.safetensors" in problem
    (saved / "config.json").unlink()
    assert len(problems_of(saved)) == 2
    assert len(problems_of(saved / "nowhere")) == 2


def test_a_file_or_folder_in_the_wrong_place_is_reported(saved: Path) -> None:
    assert len(problems_of(saved / "config.json")) == 2
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors").mkdir()
    assert len(problems_of(saved)) == 1


def test_a_configuration_that_is_not_utf_8_is_reported(saved: Path) -> None:
    (saved / "config.json").write_bytes(b'{"d_model": "\xff"}')
    (problem,) = problems_of(saved)
    assert "not UTF-8" in problem


@pytest.mark.parametrize("text", ["", "{", "[]", '{"d_model": 24}', '{"source_vocab_size": 3.5}'])
def test_an_invalid_configuration_is_reported(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        load_checkpoint(saved)


def test_a_configuration_of_another_model_is_reported_weight_by_weight(saved: Path) -> None:
    values = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    values |= {"decoder_layers": 1, "d_ff": 41}
    (saved / "config.json").write_text(json.dumps(values), encoding="utf-8")
    problems = problems_of(saved)
    # The decoder's second layer: 3 norms of 2, 2 attentions of 8, a feed-forward of 4.
    assert sum(problem.startswith("unknown weight decoder.layers.1.") for problem in problems) == 26
    # Inner weight and bias, and outer weight, of the 3 remaining layers.
    assert sum("must have shape" in problem for problem in problems) == 9
    assert len(problems) == 35


@pytest.mark.parametrize("size", [2**44, 2**70])
def test_a_configuration_that_exceeds_all_memory_is_reported(saved: Path, size: int) -> None:
    values = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    (saved / "config.json").write_text(json.dumps(values | {"d_ff": size}), encoding="utf-8")
    with pytest.raises(DragomanError):
        load_checkpoint(saved)


def test_positions_that_exceed_all_memory_are_reported(saved: Path) -> None:
    values = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    values["max_source_positions"] = 2**44
    (saved / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(DragomanError):
        load_checkpoint(saved)


def test_sizes_that_exceed_64_bits_are_reported_in_one_line(saved: Path) -> None:
    values = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    (saved / "config.json").write_text(json.dumps(values | {"d_ff": 2**70}), encoding="utf-8")
    with pytest.raises(DragomanError) as caught:
        load_checkpoint(saved)
    assert len(str(caught.value).splitlines()) == 1
