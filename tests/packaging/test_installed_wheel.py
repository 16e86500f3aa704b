"""The wheel, installed with [cpu] into an empty environment, runs a bundle without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from .conftest import ROOT

pytestmark = pytest.mark.dist

GENERATE = """
import json, sys
from dragoman.runtime import load

results = load(sys.argv[1], threads=1).generate(["dragoman", "transformer"])
print(json.dumps([result.text for result in results]))
"""
PRONUNCIATIONS = ["D R AE G AH M AH N", "T R AE N S F AO R M ER"]


def output(*command: str | Path) -> str:
    """What a command prints, run outside the repository and without its settings."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=Path(command[0]).parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles") / "g2p-en"
    build = [sys.executable, "-m", "dragoman", "build", "g2p-en", "--limit", "100"]
    subprocess.run([*build, "--output", str(directory)], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("empty")
    venv.EnvBuilder(with_pip=True).create(directory)
    return directory


@pytest.fixture(scope="module")
def installed(empty: Path, wheel_path: Path) -> Path:
    """The folder of the environment's commands."""
    constraints = ROOT / "constraints.txt"
    pip = (empty / "bin" / "python", "-m", "pip", "install", "--quiet")
    output(*pip, "--constraint", constraints, f"{wheel_path}[cpu]")
    return empty / "bin"


def size(directory: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_the_command_runs_a_bundle(installed: Path, bundle: Path) -> None:
    lines = output(installed / "dragoman", "run", bundle, "dragoman", "transformer").splitlines()
    assert lines == PRONUNCIATIONS


def test_the_library_runs_a_bundle(installed: Path, bundle: Path) -> None:
    assert json.loads(output(installed / "python", "-c", GENERATE, bundle)) == PRONUNCIATIONS


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript", "safetensors", "transformers"])
def test_heavy_packages_are_not_installed(installed: Path, package: str) -> None:
    find = f"import importlib.util; print(importlib.util.find_spec({package!r}))"
    assert output(installed / "python", "-c", find) == "None\n"


def test_building_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "dragoman"), "build", "g2p-en", "-o", str(tmp_path / "bundle")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'dragoman[export]'" in done.stderr


def test_sizes_are_stated(
    installed: Path, wheel_path: Path, sdist_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    ours = size(packages / "dragoman")
    models = size(packages / "dragoman" / "reference_model" / "pretrained")
    pip = sum(size(path) for name in ("pip", "setuptools") for path in packages.glob(f"{name}*"))
    with capsys.disabled():
        print()
        for name, bytes_ in (
            (f"wheel, {wheel_path.name}", wheel_path.stat().st_size),
            (f"source distribution, {sdist_path.name}", sdist_path.stat().st_size),
            ("installed with [cpu]", size(packages) - pip),
            ("  dragoman itself", ours),
            ("    its trained models", models),
        ):
            print(f"{bytes_ / 1e6:7.1f} MB  {name}")
    assert ours - models < 8e6
    assert models < 24e6
