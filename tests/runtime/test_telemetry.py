"""Nothing that is installed with Dragoman tells anybody what it is used for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..small_bundle import small_bundle

SCRIPT = """
import os, sys
from dragoman.runtime import load
load(sys.argv[1], threads=1).generate([[3, 4]], max_new_tokens=2)
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""


@pytest.mark.parametrize(("own", "expected"), [(None, "1"), ("yes", "yes")])
def test_onnxruntime_sends_no_telemetry_and_keeps_no_number_of_the_machine(
    tmp_path: Path, own: str | None, expected: str
) -> None:
    """It would write the number that it sends beside its other caches."""
    variables = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    bundle, home = tmp_path / "bundle", tmp_path / "home"
    for directory in (bundle, home):
        directory.mkdir()
    small_bundle(bundle, 5)
    variables |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    if own is not None:
        variables["ORT_DISABLE_TELEMETRY"] = own
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle)],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [expected]
    assert done.stderr == ""
    if own is None:
        assert list(home.rglob("*")) == []
