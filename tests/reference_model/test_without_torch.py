"""Checkpoints, recipes, examples and configurations are validated without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dragoman.reference_model
import dragoman.reference_model.recipes
import dragoman.reference_model.training

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def run(code: str, *arguments: object) -> str:
    """The output of a Python process in which torch cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TORCH + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torch_cannot_be_imported() -> None:
    """Otherwise the other tests would prove nothing."""
    code = """
import dragoman.reference_model
try:
    dragoman.reference_model.Transformer
except ImportError as error:
    print("refused")
"""
    assert run(code) == "refused"


def test_an_unknown_checkpoint_is_refused(tmp_path: Path) -> None:
    code = """
from dragoman.errors import DragomanError
from dragoman.reference_model.pretrained import find_checkpoint
try:
    find_checkpoint(sys.argv[1])
except DragomanError as error:
    print(error)
"""
    assert run(code, tmp_path / "nothing").startswith("expected the directory of a checkpoint")


def test_an_unknown_recipe_is_refused() -> None:
    code = """
from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import RECIPES, find_recipe
try:
    find_recipe("g2p")
except DragomanError as error:
    print(error)
assert find_recipe("g2p-en") is RECIPES["g2p-en"]
"""
    assert (
        run(code)
        == "unknown recipe 'g2p', expected one of: g2p-en, verses-en, bible-en-es, multi30k-en-de"
    )


def test_examples_are_read_and_written(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from dragoman.reference_model.recipes import Example, read_examples, write_examples
path = Path(sys.argv[1])
write_examples([Example("cat", ("K AE T",))], path)
print(read_examples(path))
"""
    found = run(code, tmp_path / "examples.tsv")
    assert found == "[Example(source='cat', references=('K AE T',))]"


def test_a_configuration_is_validated() -> None:
    code = """
from dragoman.reference_model import CheckpointError, ConfigError, GenerationConfig, ModelConfig
GenerationConfig(min_new_tokens=1)
try:
    ModelConfig.from_json('{"source_vocab_size": -1, "target_vocab_size": 3}')
except ConfigError as error:
    print(error)
"""
    expected = "invalid model configuration: source_vocab_size must be at least 1, found -1"
    assert run(code).startswith(expected)


@pytest.mark.parametrize(
    "package",
    [
        dragoman.reference_model,
        dragoman.reference_model.recipes,
        dragoman.reference_model.training,
    ],
    ids=lambda package: package.__name__,
)
def test_every_public_name_can_be_imported(package: object) -> None:
    """The table of names agrees with `__all__`."""
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Transfomer'"):
        _ = dragoman.reference_model.Transfomer  # type: ignore[attr-defined]
