"""What the wheels and the source distributions contain, and what they must not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.reference_model.pretrained import PRETRAINED

from .conftest import ROOT, Contents, read_wheel

pytestmark = pytest.mark.dist

LINKED = ("benchmarks", "export", "optimize", "reference_model", "runtime")
PACKAGES = (*LINKED, "cli")
BENCHMARKS = "dragoman/benchmarks/"
MEASURING = {"arrangement", "bandwidth", "latency", "machine"}
"""The modules of `BENCHMARKS` that `dragoman` needs; packages of it compare with other tools."""
SHIPPED = "reference_model/pretrained/"
SUFFIXES = (".py", ".html", ".js", ".css")
DATA = ("py.typed", "tested_versions.txt", "sentence.opus", "sentence.opus.license")
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
            if path.suffix in SUFFIXES or name in DATA:
                files.add(path.as_posix())
    return {name for name in files if "__pycache__" not in name}


def tracked_files() -> set[str]:
    """The files of the repository."""
    git = shutil.which("git")
    assert git is not None
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    return set(os.fsdecode(listed.stdout).split("\0")) - {""}


def in_the_source_distribution(name: str) -> str | None:
    """Where a file of the repository is; None for links to folders, and for the models."""
    if name.startswith(SHIPPED) and not name.endswith(".py"):
        return None
    if (ROOT / name).is_dir():
        return None
    linked = name.split("/")[0] in LINKED and not name.startswith("benchmarks/results/")
    return f"src/dragoman/{name}" if linked else name


def test_the_wheel_has_every_module(wheel: Contents) -> None:
    assert {name for name in wheel if not name.startswith(DIST_INFO)} == package_files()


def test_the_source_distribution_is_the_repository_without_the_models(sdist: Contents) -> None:
    """With the tests and all that they need; links to folders are the folders."""
    expected = {place for name in tracked_files() if (place := in_the_source_distribution(name))}
    assert set(sdist) == expected | {"PKG-INFO"}
    assert any(name.startswith("tests/runtime/") for name in sdist)


@pytest.mark.parametrize("package", PACKAGES)
def test_linked_folders_are_packages(package: str, wheel: Contents, sdist: Contents) -> None:
    assert f"dragoman/{package}/__init__.py" in wheel
    assert f"src/dragoman/{package}/__init__.py" in sdist


@pytest.mark.parametrize(
    "name",
    [
        "dragoman/py.typed",
        "dragoman/tested_versions.txt",
        "dragoman/pictures/attention.html",
        "dragoman/verification/report/page.html",
        "dragoman/verification/report/parts.html",
        "dragoman/verification/report/style.html",
        "dragoman/runtime/serving/page/page.js",
        f"{DIST_INFO}/licenses/LICENSE",
        f"{DIST_INFO}/entry_points.txt",
    ],
)
def test_the_wheel_has(name: str, wheel: Contents) -> None:
    assert name in wheel


def test_the_models_are_a_distribution_of_their_own(
    wheel: Contents, models_wheel: Contents, models_sdist: Contents
) -> None:
    shipped = {
        name.removeprefix(SHIPPED): (ROOT / name).read_bytes()
        for name in tracked_files()
        if name.startswith(tuple(f"{SHIPPED}{model}/" for model in PRETRAINED))
    }
    assert {name.partition("/")[0] for name in shipped} == set(PRETRAINED)
    package = "dragoman_models/"
    assert {
        name.removeprefix(package): content
        for name, content in models_wheel.items()
        if name.startswith(package)
    } == shipped
    assert shipped.items() <= models_sdist.items()
    assert not [name for name in wheel if name.endswith((".safetensors", ".tsv"))]
    assert not [name for name in models_wheel if name.endswith(".py")]


def test_of_the_benchmarks_the_wheel_has_only_what_the_commands_import(wheel: Contents) -> None:
    expected = {f"{BENCHMARKS}{name}.py" for name in MEASURING | {"__init__"}}
    assert {name for name in wheel if name.startswith(BENCHMARKS)} == expected


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"])
def test_the_source_distribution_has(name: str, sdist: Contents) -> None:
    assert sdist[name] == (ROOT / name).read_bytes()


def test_development_stays_out(wheel: Contents, sdist: Contents) -> None:
    assert not [name for name in wheel if re.search(r"(^|/)(tests|docs|\.ci|results)/", name)]
    names = [*wheel, *(name for name in sdist if not name.startswith("tests/"))]
    assert not [name for name in names if name.endswith((".pyc", ".onnx", ".engine"))]


def test_no_path_of_this_machine_is_inside(wheel: Contents, sdist: Contents) -> None:
    for path in (ROOT, Path.home()):
        text = f"{path}/".encode()
        assert not [name for name, content in (wheel | sdist).items() if text in content]


def test_the_wheel_of_the_working_tree_is_the_same(tmp_path: Path, wheel: Contents) -> None:
    """`make dist` builds the wheel from the source distribution, where links have become files."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir"]
    subprocess.run([*command, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    assert read_wheel(path) == wheel
