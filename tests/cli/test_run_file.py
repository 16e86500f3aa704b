"""`dragoman run-file` where Ray is not installed: see tests/serving/ray for where it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Dragoman = Callable[..., CompletedProcess[str]]


def test_the_extra_is_named(
    dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, bundle: Path, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = dragoman("run-file", bundle, tmp_path / "in", "-o", tmp_path / "out")
    assert outcome.returncode == 2
    assert outcome.stderr == "Error: this needs the package ray: pip install 'dragoman[ray]'\n"
