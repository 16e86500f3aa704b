"""Caches of TensorRT on this machine, for each user, package and version.

They only save time: a failure here is a warning at most.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .packages import Package


def cache_file(package: Package, kind: str) -> Path:
    """The path of a cache: under XDG_CACHE_HOME, else ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "dragoman" / f"{package.name}-{package.version}.{kind}"


def read_cache(file: Path) -> bytes:
    """The contents; empty if the file does not exist or cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""


def write_cache(file: Path, data: bytes) -> str | None:
    """Write the file atomically. If two processes write at once, the last one wins.

    Returns:
        a warning if it cannot be written
    """
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        return f"not kept for the next time: {error.strerror} ({file})"
    return None
