"""Records of files that a test has changed or written by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dragoman.runtime.format.manifest import MANIFEST_FILE, FileRecord


def record_files(directory: Path) -> tuple[FileRecord, ...]:
    """Records of all files in a directory but the manifest, in order of path."""
    return tuple(
        FileRecord(
            path.relative_to(directory).as_posix(),
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST_FILE
    )
