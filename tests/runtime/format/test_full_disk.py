"""Writes that fail in the operating system: a limit on file sizes stands in for a full disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.runtime import read_bundle

pytest.importorskip("resource", reason="limits on file sizes need a POSIX system")

SCRIPT = """
import dataclasses, resource, sys
from pathlib import Path
from dragoman import DragomanError
from dragoman.runtime import read_bundle
from dragoman.runtime.format.writing import new_directory, write_manifest

what, destination, bundle = sys.argv[1], Path(sys.argv[2]), read_bundle(Path(sys.argv[3]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    if what == "manifest":
        write_manifest(dataclasses.replace(bundle.manifest, name="new"), destination)
    else:
        with new_directory(destination, overwrite=True) as directory:
            (directory / "small").write_bytes(bytes(900))
            if what == "file":
                (directory / "large").write_bytes(bytes(100_000))
            else:
                write_manifest(bundle.manifest, directory)
except DragomanError as error:
    sys.exit(f"reported: {error}")
"""


def run(what: str, destination: Path, bundle: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what, str(destination), str(bundle)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("reported: cannot write "), done.stderr
    assert done.stderr.count("\n") == 1, "one line, no traceback"
    return done.stderr


@pytest.mark.parametrize("what", ["file", "manifest inside"])
@pytest.mark.parametrize("existing", [False, True])
def test_no_partial_file_is_left_behind(
    tmp_path: Path, small_bundle: Path, what: str, existing: bool
) -> None:
    destination = tmp_path / "new"
    if existing:
        shutil.copytree(small_bundle, destination)
    before = sorted(tmp_path.iterdir())
    assert "File too large" in run(what, destination, small_bundle)
    assert sorted(tmp_path.iterdir()) == before
    if existing:
        read_bundle(destination)


def test_a_manifest_that_cannot_be_replaced_stays_unchanged(small_bundle: Path) -> None:
    before = {path: path.read_bytes() for path in small_bundle.iterdir() if path.is_file()}
    run("manifest", small_bundle, small_bundle)
    after = {path: path.read_bytes() for path in small_bundle.iterdir() if path.is_file()}
    assert after == before
