"""The progress of long-running work, its memory, and log messages of libraries that it hides."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """Receives progress while work is done.

    Methods return at once and raise nothing. They may be called from another thread, one at a time.
    """

    def stage(self, description: str) -> None:
        """Notify that a stage begins, such as "exporting the encoder"."""

    def advance(self, done: int, total: int) -> None:
        """Notify that the current stage has done this part of its total."""


class Silent:
    """Ignores progress."""

    def stage(self, description: str) -> None:
        """Ignore a stage."""

    def advance(self, done: int, total: int) -> None:
        """Ignore how much is done."""


def resident_mb() -> tuple[float, float]:
    """Return the resident memory of this process, and its peak, in MB of 10^6 bytes.

    It includes pages of mapped files, which the system may drop. It is read from /proc on Linux,
    where getrusage includes the parent's memory before exec; elsewhere, only the peak is known.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        if sys.platform == "win32":
            return math.nan, math.nan
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return math.nan, peak * (1 if sys.platform == "darwin" else 1024) / 1e6
    lines = status.read_text(encoding="utf-8").splitlines()
    found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS:", "VmHWM:")))
    present, peak = (int(found[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return present * 1024 / 1e6, peak * 1024 / 1e6


@contextlib.contextmanager
def quiet(*libraries: str, level: int = logging.ERROR) -> Iterator[None]:
    """Hide log messages of libraries that do not concern users.

    Args:
        libraries: names of loggers
        level: lowest level that is shown
    """
    loggers = [logging.getLogger(name) for name in libraries]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)
