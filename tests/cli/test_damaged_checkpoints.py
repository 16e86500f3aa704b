"""A checkpoint that is not whole: all that is wrong in one line, exit status 2, no bundle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from safetensors.torch import load_file, save_file

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

INNER = "encoder.layers.0.feed_forward.inner.weight"
QUERY = "decoder.layers.0.self_attention.query.weight"
GAIN = "decoder.norm.gain"


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


def refused(dragoman: Dragoman, directory: Path, command: str = "export") -> str:
    output = directory.parent / "bundle"
    outcome = dragoman(command, directory, "-o", output)
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: ") and str(directory) in line
    assert outcome.stdout == ""
    assert [path.name for path in directory.parent.iterdir()] == ["checkpoint"]
    return line


@pytest.mark.parametrize("command", ["export", "build"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(
    dragoman: Dragoman, damaged: Path, value: float, command: str
) -> None:
    weights = load_file(damaged / "model.safetensors")
    weights[INNER][2, 3] = value
    save_file(weights, damaged / "model.safetensors")
    line = refused(dragoman, damaged, command)
    assert f"{INNER} has 1 of 1536 values that are NaN or infinite" in line


def test_missing_extra_and_misshapen_weights_are_all_listed(
    dragoman: Dragoman, damaged: Path
) -> None:
    weights = load_file(damaged / "model.safetensors")
    del weights[GAIN], weights[INNER]
    weights["more"] = torch.zeros(1)
    weights[QUERY] = torch.zeros(32, 31)
    save_file(weights, damaged / "model.safetensors")
    line = refused(dragoman, damaged)
    for problem in (
        f"missing weight {GAIN}",
        f"missing weight {INNER}",
        "unknown weight more",
        f"{QUERY} must have shape [32, 32], found [32, 31]",
    ):
        assert problem in line


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_a_truncated_weight_file(dragoman: Dragoman, damaged: Path, keep: int) -> None:
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "not a whole safetensors file" in refused(dragoman, damaged)


def test_missing_files(dragoman: Dragoman, damaged: Path) -> None:
    (damaged / "model.safetensors").unlink()
    assert "found no model.safetensors" in refused(dragoman, damaged)


def test_one_tokenizer_of_two(dragoman: Dragoman, damaged: Path) -> None:
    (damaged / "source_tokenizer.json").unlink()
    assert "or neither, found one" in refused(dragoman, damaged)


@pytest.mark.parametrize("text", ["", "[]", '{"name": "g2p-en"}', '{"recipe": ["g2p-en"]}'])
def test_a_recipe_file_that_is_not_one(dragoman: Dragoman, damaged: Path, text: str) -> None:
    (damaged / "recipe.json").write_text(text, encoding="utf-8")
    assert "expected a JSON object that names a recipe" in refused(dragoman, damaged)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tokenizer_that_is_not_one(
    dragoman: Dragoman, damaged: Path, copied_export: None, side: str
) -> None:
    (damaged / f"{side}_tokenizer.json").write_text("{}", encoding="utf-8")
    assert "not a tokenizer file" in refused(dragoman, damaged, "build")


def test_a_configuration_that_is_not_one(dragoman: Dragoman, damaged: Path) -> None:
    text = (damaged / "config.json").read_text(encoding="utf-8")
    changed = text.replace('"num_heads": 2', '"num_heads": 5').replace('"relu"', '"sigmoid"')
    (damaged / "config.json").write_text(changed, encoding="utf-8")
    output = damaged.parent / "bundle"
    outcome = dragoman("export", damaged, "-o", output)
    assert outcome.returncode == 2 and not output.exists()
    (line,) = outcome.stderr.splitlines()
    known = "relu, gelu, gelu_tanh, quick_gelu, silu, tanh"
    assert f"activation must be one of {known}, found 'sigmoid'" in line
