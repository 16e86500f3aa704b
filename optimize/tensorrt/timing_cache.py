"""What one build learned about kernels, kept for the next: for each user, package and version.

TensorRT times kernels when it builds. TensorRT-RTX compiles them where they run, and keeps those in
a cache of its own (`runtime.backends.tensorrt`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from dragoman.runtime.backends.tensorrt.packages import Package


def timing_cache_file(package: Package) -> Path | None:
    """Where it is kept, under XDG_CACHE_HOME, else ~/.cache; None: the package does not time."""
    if package.name == "tensorrt-rtx":
        return None
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "dragoman" / f"{package.name}-{package.version}.timing"


def load_timing_cache(config: Any, file: Path) -> str | None:
    """Give a build (IBuilderConfig) what is known.

    Returns:
        a warning where the file is of no use: the build takes its time then
    """
    known = b""
    with contextlib.suppress(OSError):
        known = file.read_bytes()
    cache = config.create_timing_cache(known)
    if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
        return None
    fresh = config.create_timing_cache(b"")
    if fresh is not None:
        config.set_timing_cache(fresh, ignore_mismatch=False)
    return f"{file} is of another version or device, or damaged: begun anew" if known else None


def save_timing_cache(config: Any, file: Path) -> str | None:
    """Keep what a build learned. Two builds at once: the last one's is kept, whole.

    Returns:
        a warning where it cannot be written
    """
    cache = config.get_timing_cache()
    if cache is None:
        return None
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(bytes(cache.serialize()))
        partial.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        return f"the timing cache is not kept: {error.strerror} ({file})"
    return None
