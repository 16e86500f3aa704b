"""What TensorRT learned on this machine, kept for each user, package and version.

None of it is needed: whatever goes wrong here costs time, and is a warning at most.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .packages import Package


def cache_file(package: Package, kind: str) -> Path:
    """Where it is kept: under XDG_CACHE_HOME, else ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "dragoman" / f"{package.name}-{package.version}.{kind}"


def read_cache(file: Path) -> bytes:
    """What was kept; nothing if there is no such file or it cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""


def write_cache(file: Path, data: bytes) -> str | None:
    """Keep data. Of two processes at once the last one's is kept, whole.

    Returns:
        a warning where it cannot be written
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
