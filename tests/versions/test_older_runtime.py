"""A bundle and an ONNX Runtime that computes other outputs without an error.

Run by `make test-versions`; DRAGOMAN_OLD_PYTHON is the interpreter of an environment with 1.27.0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.tools.versions.__main__ import run

pytestmark = pytest.mark.versions

WORDS = ["dragoman", "transformer", "aardvark", "interpreter"]


@pytest.fixture(scope="module", params=["int8", "int4"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles") / "g2p-en"
    build = [sys.executable, "-m", "dragoman", "build", "g2p-en", "--precision", request.param]
    command = [*build, "--limit", "20", "--output", str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    return directory


def outputs(python: str, bundle: Path, check: str) -> dict[str, Any]:
    """What a bundle gives with the kernels that processors with VNNI use."""
    return run(Path(python), bundle, WORDS, "--products", "fast", "--check", check)


def test_known_answers_refuse_it(bundle: Path) -> None:
    old = os.environ["DRAGOMAN_OLD_PYTHON"]
    right = outputs(sys.executable, bundle, "never")["texts"]
    unchecked = outputs(old, bundle, "never")
    assert unchecked["versions"]["onnxruntime"] == "1.27.0"
    assert unchecked["errors"] == []
    assert unchecked["texts"] != right
    assert "not_loaded" not in outputs(sys.executable, bundle, "always")
    assert re.search(
        r"onnxruntime 1\.27\.0 gives other (tokens|probabilities) than those proven at build "
        r"\(\d of \d known answers differ\): install onnxruntime==",
        outputs(old, bundle, "always")["not_loaded"],
    )
