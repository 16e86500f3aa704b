"""Measures the memory of processes, also of those that import another version of Dragoman."""

from __future__ import annotations

import resource
from pathlib import Path


def memory_mb(process: int | str, field: str = "VmRSS") -> float:
    """Return the memory of a process, by default resident, in MB of 10^6 bytes; 0: unknown."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    kilobytes = (int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
    return round(next(kilobytes, 0) * 1024 / 1e6, 1)


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process; on Linux, getrusage counts the parent's."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return memory_mb("self", "VmHWM") or peak
