"""Describes the machine, and measures the memory of this process."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path


def machine() -> str:
    """Return a description of the processor, such as "AMD EPYC, 2 cores"."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process, in MB of 10^6 bytes.

    It is read from /proc on Linux, where getrusage includes the parent's memory before exec.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
