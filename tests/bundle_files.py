"""The files of bundles that tests change by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dragoman.runtime.format.manifest import MANIFEST_FILE, FileRecord


def record_files(directory: Path) -> tuple[FileRecord, ...]:
    """Records of all files in a directory but the manifest, in order of path."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST_FILE)
    return tuple(
        FileRecord(
            path.relative_to(directory).as_posix(),
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in paths
    )
