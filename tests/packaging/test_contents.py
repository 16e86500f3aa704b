"""What the wheel and the source distribution contain, and what they must not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman

from .conftest import ROOT, Contents, read_wheel

pytestmark = pytest.mark.dist

PACKAGES = ("benchmarks", "cli", "export", "optimize", "reference_model", "runtime")
BENCHMARKS = "dragoman/benchmarks/"
MEASURING = {"arrangement", "bundle_speed", "child", "latency", "machine", "processes"}
"""The modules of `BENCHMARKS` that `dragoman` needs; packages of it compare with other tools."""
PRETRAINED = "dragoman/reference_model/pretrained"
SUFFIXES = (".py", ".html", ".js", ".css")
DIST_INFO = f"dragoman-{dragoman.__version__}.dist-info"


def package_files() -> set[str]:
    """Every file that must be installed, as `dragoman/...`, found through the links in src/.

    Packages of `dragoman.benchmarks` are not installed.
    """
    files = set()
    source = ROOT / "src"
    for folder, _, names in os.walk(source / "dragoman", followlinks=True):
        for name in names:
            path = Path(folder, name).relative_to(source)
            if path.as_posix().startswith(BENCHMARKS) and len(path.parts) > 3:
                continue
            if path.suffix in SUFFIXES or name == "py.typed" or "pretrained" in path.parts:
                files.add(path.as_posix())
    return {name for name in files if "__pycache__" not in name}


def test_the_wheel_has_every_module_and_the_shipped_model(wheel: Contents) -> None:
    assert {name for name in wheel if not name.startswith(DIST_INFO)} == package_files()


def test_the_source_distribution_has_the_same(sdist: Contents) -> None:
    installed = {name.removeprefix("src/") for name in sdist if name.startswith("src/dragoman/")}
    assert installed == package_files()


@pytest.mark.parametrize("package", PACKAGES)
def test_linked_folders_are_packages(package: str, wheel: Contents, sdist: Contents) -> None:
    assert f"dragoman/{package}/__init__.py" in wheel
    assert f"src/dragoman/{package}/__init__.py" in sdist


@pytest.mark.parametrize(
    "name",
    [
        "dragoman/py.typed",
        "dragoman/pictures/attention.html",
        "dragoman/verification/report/page.html",
        "dragoman/verification/report/parts.html",
        "dragoman/verification/report/style.html",
        "dragoman/runtime/serving/page/page.js",
        f"{PRETRAINED}/g2p-en/model.safetensors",
        f"{PRETRAINED}/g2p-en/held_out.tsv",
        f"{PRETRAINED}/g2p-en/LICENSE-CMUdict.txt",
        f"{PRETRAINED}/verses-en/model.safetensors",
        f"{PRETRAINED}/verses-en/LICENSE-World-English-Bible.txt",
        f"{PRETRAINED}/bible-en-es/model.safetensors",
        f"{PRETRAINED}/bible-en-es/LICENSE-Bibles.txt",
        f"{DIST_INFO}/licenses/LICENSE",
        f"{DIST_INFO}/entry_points.txt",
    ],
)
def test_the_wheel_has(name: str, wheel: Contents) -> None:
    assert name in wheel


def test_of_the_benchmarks_the_wheel_has_only_what_the_commands_import(
    wheel: Contents, sdist: Contents
) -> None:
    expected = {f"{BENCHMARKS}{name}.py" for name in MEASURING | {"__init__"}}
    assert {name for name in wheel if name.startswith(BENCHMARKS)} == expected
    for name in sdist:
        if BENCHMARKS in name:
            assert name.partition("src/")[2] in expected


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"])
def test_the_source_distribution_has(name: str, sdist: Contents) -> None:
    assert sdist[name] == (ROOT / name).read_bytes()


def test_development_stays_out(wheel: Contents, sdist: Contents) -> None:
    names = [*wheel, *sdist]
    assert not [name for name in names if re.search(r"(^|/)(tests|docs|\.ci|results)/", name)]
    assert not [name for name in names if name.endswith((".pyc", ".onnx", ".engine"))]


def test_no_path_of_this_machine_is_inside(wheel: Contents, sdist: Contents) -> None:
    for path in (ROOT, Path.home()):
        text = f"{path}/".encode()
        assert not [name for name, content in (wheel | sdist).items() if text in content]


def test_only_requirements_of_users_are_published(wheel: Contents) -> None:
    metadata = wheel[f"{DIST_INFO}/METADATA"].decode()
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)) == {
        "audio",
        "cpu",
        "cuda",
        "export",
        "metrics",
        "pictures",
        "polygraphy",
        "ray",
        "report",
        "sentencepiece",
        "serve",
        "sign",
        "tensorrt",
        "tensorrt-rtx",
        "train",
    }


def test_the_wheel_of_the_working_tree_is_the_same(tmp_path: Path, wheel: Contents) -> None:
    """`make dist` builds the wheel from the source distribution, where links have become files."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path)]
    environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    assert read_wheel(path) == wheel
