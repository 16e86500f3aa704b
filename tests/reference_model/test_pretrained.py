"""Checkpoints that ship are in the clone, or in the distribution dragoman-models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import pretrained
from dragoman.reference_model.pretrained import PRETRAINED, find_checkpoint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, with the package as its wheel has it: without checkpoints."""
    module = tmp_path / "dragoman" / "reference_model" / "pretrained" / "__init__.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(pretrained, "__file__", str(module))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_clone_has_them(name: str, folder: Path) -> None:
    (folder / "dragoman_models" / name).mkdir(parents=True)
    directory = folder / "dragoman/reference_model/pretrained" / name
    directory.mkdir()
    assert find_checkpoint(name) == directory


@pytest.mark.parametrize("name", PRETRAINED)
def test_without_a_clone_dragoman_models_has_them(name: str, folder: Path) -> None:
    directory = folder / "dragoman_models" / name
    directory.mkdir(parents=True)
    assert find_checkpoint(name) == directory


@pytest.mark.parametrize("name", PRETRAINED)
def test_they_are_found_here(name: str) -> None:
    assert (find_checkpoint(name) / "model.safetensors").is_file()


@pytest.mark.parametrize("other", [None, "dragoman_models/another-model"])
@pytest.mark.parametrize(
    ("torch", "command"),
    [
        (True, "pip install dragoman-models"),
        (False, "pip install 'dragoman[export]' dragoman-models"),
    ],
)
def test_without_either_the_error_names_what_to_install(
    torch: bool,
    command: str,
    other: str | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # which is found on the path, then
    if torch:
        (folder / "torch").mkdir()
    if other is not None:
        (folder / other).mkdir(parents=True)
    with pytest.raises(DragomanError) as refused:
        locate_checkpoint("g2p-en")
    expected = "g2p-en is shipped with dragoman-models, which is not installed"
    assert str(refused.value) == f"{expected}: {command}"
