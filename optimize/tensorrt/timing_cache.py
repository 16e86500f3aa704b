"""The timing cache: kernel timings of one build, kept for the next; per user, package and version.

TensorRT times kernels when it builds engines. TensorRT-RTX compiles kernels where they run instead,
and has another cache for that (`runtime.backends.tensorrt.contexts`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.backends.tensorrt.user_cache import cache_file, read_cache, write_cache


def timing_cache_file(package: Package) -> Path | None:
    """The path of the cache; None: the package does not time kernels."""
    return None if package.name == "tensorrt-rtx" else cache_file(package, "timing")


def load_timing_cache(config: Any, file: Path) -> str | None:
    """Let a build (IBuilderConfig) use and extend the cache.

    Returns:
        a warning if the file cannot be used, which makes the build slower
    """
    known = read_cache(file)
    cache = config.create_timing_cache(known)
    if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
        return None
    fresh = config.create_timing_cache(b"")
    if fresh is not None:
        config.set_timing_cache(fresh, ignore_mismatch=False)
    return (
        f"{file} is of another version or device, or damaged: starting with an empty cache"
        if known
        else None
    )


def save_timing_cache(config: Any, file: Path) -> str | None:
    """Write a build's timings to the file; a warning if it cannot be written."""
    cache = config.get_timing_cache()
    if cache is None:
        return None
    warning = write_cache(file, bytes(cache.serialize()))
    return None if warning is None else f"timing cache {warning}"
