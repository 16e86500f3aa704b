"""Two builds give the same bytes, and the source distribution is whole: its tests run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .conftest import ROOT
from .test_contents import tracked_files

pytestmark = pytest.mark.dist

ARCHIVES = ("dragoman-*.whl", "dragoman-*.tar.gz", "dragoman_models-*.whl", "dragoman_models-*.gz")
TESTS = ("tests/files", "tests/reference_model/test_without_torch.py", "tests/packaging")


def build(source: Path, output: Path, *options: str, **variables: str) -> None:
    """Build a distribution as `make dist` does, for one user alone, far east."""
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(output)]
    environment = os.environ | {"TZ": "Pacific/Auckland"} | variables
    subprocess.run(
        command, cwd=source, env=environment, umask=0o077, check=True, capture_output=True
    )


def digests(folder: Path) -> dict[str, str]:
    paths = (path for pattern in ARCHIVES for path in folder.glob(pattern))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository in another folder, new, and readable by their owner alone."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in sorted(tracked_files(), reverse=True):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod((ROOT / name).stat().st_mode & 0o700)
    return folder


def test_another_build_gives_the_same_bytes(elsewhere: Path, tmp_path: Path) -> None:
    build(elsewhere, tmp_path)
    build(elsewhere / "reference_model/pretrained", tmp_path)
    assert digests(tmp_path) == digests(ROOT / "dist")
    assert len(digests(tmp_path)) == len(ARCHIVES)


def test_archives_bear_the_time_that_is_set(elsewhere: Path, tmp_path: Path) -> None:
    time = datetime(2026, 3, 1, 12, 30, 44, tzinfo=UTC)
    build(elsewhere, tmp_path, SOURCE_DATE_EPOCH=str(int(time.timestamp())))
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert {datetime(*entry.date_time, tzinfo=UTC) for entry in archive.infolist()} == {time}
    with tarfile.open(sdist) as members:
        assert {member.mtime for member in members} == {time.timestamp()}


def test_tests_run_in_the_unpacked_source_distribution(sdist_path: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist_path) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
