"""A bundle contains no paths of the machine that built it."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from dragoman.runtime.format.manifest import Manifest


@pytest.mark.parametrize("name", ["encoder.onnx", "decoder.onnx", "manifest.json"])
def test_no_path_of_this_machine(tiny_bundle: tuple[Path, Manifest], name: str) -> None:
    directory, _ = tiny_bundle
    content = (directory / name).read_bytes()
    paths = ["/root", "/home", "/work", "/tmp", "site-packages", ".py", "/usr", "File "]  # noqa: S108
    paths += [str(Path.cwd()), str(directory), str(Path(dragoman.__file__).parent)]
    assert [path for path in paths if path.encode() in content] == []
