"""Small wheels that are made for a test."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_wheel(
    directory: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """A wheel with these files and this metadata."""
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    lines = [f"{file},," for file in (*files, f"{info}/METADATA", f"{info}/WHEEL")]
    path = directory / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/METADATA", "\n".join([*metadata, "", ""]))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))
    return path
