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

@pytest.mark.parametrize("number", range({tests}))
def test_ends(number):
    if number in {numbers}:
        os._exit(1)
"""


@pytest.mark.parametrize("scheduler", ["LongestFirst", "ModelByModel"])
@pytest.mark.parametrize(
    ("processes", "sizes", "ended"),
    [
        (2, [4, 4, 4, 4], {"test_1.py": (1, 3), "test_2.py": (0,)}),
        (1, [2, 1], {"test_0.py": (0,)}),  # leaves one test of each file
    ],
)
def test_a_test_that_ends_its_worker_fails_and_others_run_once(
    processes: int,
    sizes: list[int],
    ended: dict[str, tuple[int, ...]],
    scheduler: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(scheduler=scheduler))
    for number, tests in enumerate(sizes):
        name = f"test_{number}.py"
        (tmp_path / name).write_text(TESTS.format(tests=tests, numbers=ended.get(name, ())))
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--numprocesses",
            str(processes),
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = {f"{file}::test_ends[{number}]" for file in ended for number in ended[file]}
    outcome = f"{len(expected)} failed, {sum(sizes) - len(expected)} passed"
    assert outcome in done.stdout, done.stdout + done.stderr
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == expected
