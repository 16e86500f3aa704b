"""The wheel, installed with [cpu] into an empty environment, runs a bundle without PyTorch.

The wheel also builds that bundle, of a model in dragoman-models, where PyTorch is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from subprocess import CompletedProcess

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


def run(*command: str | Path, packages: Path | None = None) -> CompletedProcess[str]:
    """Run a command outside the repository and without its settings.

    Args:
        packages: a folder of installed packages that go before those of the environment
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    return subprocess.run(
        list(map(str, command)),
        cwd=Path(command[0]).parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def output(*command: str | Path, packages: Path | None = None) -> str:
    """What a command prints."""
    done = run(*command, packages=packages)
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpacked(folder: Path, *wheels: Path) -> Path:
    """A folder with installed wheels, without what they require."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder)
    output(*pip, *wheels)
    return folder


@pytest.fixture(scope="module")
def bundle(
    tmp_path_factory: pytest.TempPathFactory, wheel_path: Path, models_wheel_path: Path
) -> Path:
    """Built by the wheel, of the model that dragoman-models has."""
    directory = tmp_path_factory.mktemp("bundles")
    packages = unpacked(directory / "packages", wheel_path, models_wheel_path)
    build = (sys.executable, "-m", "dragoman", "build", "g2p-en", "--limit", "100")
    output(*build, "--output", directory / "g2p-en", packages=packages)
    return directory / "g2p-en"


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


def test_building_without_the_models_says_what_to_install(tmp_path: Path, wheel_path: Path) -> None:
    packages = unpacked(tmp_path / "packages", wheel_path)
    build = (sys.executable, "-m", "dragoman", "build", "g2p-en")
    done = run(*build, "-o", tmp_path / "bundle", packages=packages)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "Error: g2p-en is shipped with dragoman-models, which is not installed: "
        "pip install dragoman-models"
    ]
    assert not (tmp_path / "bundle").exists()


def test_sizes_are_stated(
    installed: Path,
    wheel_path: Path,
    sdist_path: Path,
    models_wheel_path: Path,
    models_sdist_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    ours = size(packages / "dragoman")
    pip = sum(size(path) for name in ("pip", "setuptools") for path in packages.glob(f"{name}*"))
    archives = (wheel_path, sdist_path, models_wheel_path, models_sdist_path)
    with capsys.disabled():
        print()
        for name, bytes_ in (
            *((path.name, path.stat().st_size) for path in archives),
            ("installed with [cpu]", size(packages) - pip),
            ("  dragoman itself", ours),
        ):
            print(f"{bytes_ / 1e6:7.2f} MB  {name}")
    assert wheel_path.stat().st_size <= 1.5e6
    assert sdist_path.stat().st_size <= 6e6
    assert models_wheel_path.stat().st_size <= 24e6
    assert ours < 9e6
