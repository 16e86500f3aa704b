"""The archives that `make dist` leaves in dist/: dragoman's, and those of dragoman-models."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Contents = dict[str, bytes]


def only(pattern: str) -> Path:
    archives = sorted((ROOT / "dist").glob(pattern))
    assert len(archives) == 1, f"dist/{pattern}: expected one file, found {archives}: make dist"
    return archives[0]


def read_wheel(path: Path) -> Contents:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def read_sdist(path: Path) -> Contents:
    """Names without the folder that holds everything, as `dragoman-0.1.0/`."""
    contents = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            assert member.isfile() or member.isdir(), f"{member.name} is a link"
            if file := archive.extractfile(member):
                contents[member.name.partition("/")[2]] = file.read()
    return contents


@pytest.fixture(scope="session")
def wheel_path() -> Path:
    return only("dragoman-*.whl")


@pytest.fixture(scope="session")
def sdist_path() -> Path:
    return only("dragoman-*.tar.gz")


@pytest.fixture(scope="session")
def models_wheel_path() -> Path:
    return only("dragoman_models-*.whl")


@pytest.fixture(scope="session")
def models_sdist_path() -> Path:
    return only("dragoman_models-*.tar.gz")


@pytest.fixture(scope="session")
def wheel(wheel_path: Path) -> Contents:
    return read_wheel(wheel_path)


@pytest.fixture(scope="session")
def sdist(sdist_path: Path) -> Contents:
    return read_sdist(sdist_path)


@pytest.fixture(scope="session")
def models_wheel(models_wheel_path: Path) -> Contents:
    return read_wheel(models_wheel_path)


@pytest.fixture(scope="session")
def models_sdist(models_sdist_path: Path) -> Contents:
    return read_sdist(models_sdist_path)
