"""Workers of the suite that end in a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.scheduling import {scheduler}

def pytest_xdist_make_scheduler(config, log):
    return {scheduler}(config, log)
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_ends(number):
    if number in {numbers}:
        os._exit(1)
"""
ENDED = {"test_b.py": (1, 3), "test_c.py": (0,)}


@pytest.mark.parametrize("scheduler", ["LongestFirst", "ModelByModel"])
def test_a_test_that_ends_its_worker_fails_and_others_run_once(
    scheduler: str, tmp_path: Path
) -> None:
    """Two files of four end their workers, one of them twice."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(scheduler=scheduler))
    for name in ("test_a.py", "test_b.py", "test_c.py", "test_d.py"):
        (tmp_path / name).write_text(TESTS.format(numbers=ENDED.get(name, ())))
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", "2", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "3 failed, 13 passed" in done.stdout, done.stdout + done.stderr
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {
        f"{name}::test_ends[{number}]" for name, numbers in ENDED.items() for number in numbers
    }
