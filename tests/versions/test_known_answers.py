"""An ONNX Runtime that gives other outputs is refused by the known answers of a bundle."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import load
from dragoman.runtime.format.manifest import Precision

from ..bundle_files import add_answers
from ..zoo import letters_model

SOURCES = Path(__file__).parents[2] / "src"

CHILD = """
import sys
from dragoman.runtime import KnownAnswersError, load
from dragoman.runtime.backends.onnxruntime import cpu

cpu.saturates = lambda: False  # its exact kernels for processors without VNNI end the process
try:
    load(sys.argv[1], threads=1)
except KnownAnswersError as error:
    print(error)
"""


@pytest.mark.versions
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_an_old_onnxruntime_is_refused(precision: Precision, tmp_path: Path) -> None:
    python = os.environ["DRAGOMAN_OLD_PYTHON"]
    reference = letters_model()
    for name in ("neutral", "letters"):
        (tmp_path / name).mkdir()
    neutral = export_bundle(reference, tmp_path / "neutral", name="letters")
    optimize_bundle(neutral, tmp_path / "letters", target="cpu", precision=precision)
    add_answers(tmp_path / "letters", reference)
    load(tmp_path / "letters", threads=1, check="always").close()
    done = subprocess.run(
        [python, "-c", CHILD, tmp_path / "letters"],
        env=os.environ | {"PYTHONPATH": str(SOURCES), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gives other tokens than those proven at build" in done.stdout
    assert "known answers differ): install onnxruntime==" in done.stdout
