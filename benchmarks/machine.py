"""Describes the machine, and the memory of processes."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path


def machine() -> str:
    """Return a description of the processor, such as "AMD EPYC (family 25, model 17), 2 cores".

    Virtual machines give processors of several generations the same name.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    parts = (line.partition(":") for line in reversed(lines))
    found = {name.strip(): value.strip() for name, _, value in parts}
    name = found.get("model name") or platform.processor() or platform.machine()
    if {"cpu family", "model"} <= found.keys():
        name += f" (family {found['cpu family']}, model {found['model']})"
    return f"{name}, {os.cpu_count()} cores"


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
