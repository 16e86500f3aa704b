"""What one build learned about kernels, kept for the next: for each user, package and version.

TensorRT times kernels when it builds. TensorRT-RTX compiles them where they run, and keeps those in
a cache of its own (`runtime.backends.tensorrt.contexts`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.backends.tensorrt.user_cache import cache_file, read_cache, write_cache


def timing_cache_file(package: Package) -> Path | None:
    """Where it is kept; None: the package does not time."""
    return None if package.name == "tensorrt-rtx" else cache_file(package, "timing")


def load_timing_cache(config: Any, file: Path) -> str | None:
    """Give a build (IBuilderConfig) what is known.

    Returns:
        a warning where the file is of no use: the build takes its time then
    """
    known = read_cache(file)
    cache = config.create_timing_cache(known)
    if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
        return None
    fresh = config.create_timing_cache(b"")
    if fresh is not None:
        config.set_timing_cache(fresh, ignore_mismatch=False)
    return f"{file} is of another version or device, or damaged: begun anew" if known else None


def save_timing_cache(config: Any, file: Path) -> str | None:
    """Keep what a build learned; a warning where it cannot be written."""
    cache = config.get_timing_cache()
    if cache is None:
        return None
    warning = write_cache(file, bytes(cache.serialize()))
    return None if warning is None else f"timing cache {warning}"
