"""Saving a checkpoint and loading it again preserves it exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.errors import DragomanError
from dragoman.reference_model import Transformer, checkpoint, load_checkpoint, save_checkpoint

MakeModel = Callable[..., Transformer]


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_order": "pre", "positions": "learned", "logits_bias": True},
        {"source_vocab_size": 19, "tie_source_target": True, "d_head": 5, "norm_gain": False},
        {"tie_target_output": False, "query_bias": False, "dropout": 0.25},
    ],
)
def test_round_trip_is_exact(
    make_model: MakeModel, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = make_model(**changes)
    save_checkpoint(model, tmp_path / "new" / "model")
    loaded = load_checkpoint(tmp_path / "new" / "model")
    assert loaded.config == model.config
    assert not loaded.training
    expected = dict(model.named_parameters())
    found = dict(loaded.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    arguments = (torch.tensor([[3, 4]]), torch.ones(1, 2).bool(), torch.tensor([[1, 5, 6]]))
    assert torch.equal(loaded(*arguments), model(*arguments))


def test_a_checkpoint_is_two_files(make_model: MakeModel, tmp_path: Path) -> None:
    save_checkpoint(make_model(), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_tied_weights_are_stored_once(make_model: MakeModel, tmp_path: Path) -> None:
    tied = make_model(source_vocab_size=19, tie_source_target=True)
    save_checkpoint(tied, tmp_path / "tied")
    file = tmp_path / "tied" / "model.safetensors"
    numbers = sum(parameter.numel() for parameter in tied.parameters())
    weights = load_file(file)
    assert sum(weight.numel() for weight in weights.values()) == numbers
    assert [name for name, weight in weights.items() if weight.shape == (19, 24)] == [
        "encoder.embedding.tokens.weight"
    ]
    header = int.from_bytes(file.read_bytes()[:8], "little")
    assert file.stat().st_size == 8 + header + 4 * numbers


def test_tied_weights_are_tied_after_loading(make_model: MakeModel, tmp_path: Path) -> None:
    save_checkpoint(make_model(source_vocab_size=19, tie_source_target=True), tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, Transformer)
    weight = loaded.output.weight
    assert weight is loaded.get_parameter("encoder.embedding.tokens.weight")
    assert weight is loaded.decoder.embedding.tokens.weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_load_as_fp32(
    make_model: MakeModel, tmp_path: Path, dtype: torch.dtype
) -> None:
    save_checkpoint(make_model(), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = {name: weight.to(dtype) for name, weight in load_file(file).items()}
    save_file(weights, file)
    for name, parameter in load_checkpoint(tmp_path).named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, weights[name].float())


def test_saving_over_a_checkpoint_replaces_it(make_model: MakeModel, tmp_path: Path) -> None:
    save_checkpoint(make_model(seed=1), tmp_path)
    model = make_model(seed=2, d_ff=7)
    save_checkpoint(model, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert isinstance(loaded, Transformer)
    assert loaded.config.d_ff == 7
    assert torch.equal(loaded.output.weight, model.output.weight)


def test_the_configuration_is_readable_json(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    save_checkpoint(model, tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert json.loads(text) == model.config.to_dict()


def test_a_failing_save_leaves_the_old_checkpoint_unchanged(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(make_model(seed=1), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def fail(weights: dict[str, torch.Tensor], path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(DragomanError, match="No space left"):
        save_checkpoint(make_model(seed=2, d_ff=7), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert load_checkpoint(tmp_path).config.d_ff == 40


def test_a_failing_save_leaves_no_partial_file(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(weights: dict[str, torch.Tensor], path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(DragomanError, match="No space left"):
        save_checkpoint(make_model(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_read_draws_no_random_numbers(
    make_model: MakeModel, tmp_path: Path
) -> None:
    """Not even by functions of `nn.init` that PyTorch does not dispatch themselves."""
    save_checkpoint(make_model(), tmp_path)
    before = torch.get_rng_state()
    load_checkpoint(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
