"""What measurements say of the machine they were made on."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path


def machine() -> str:
    """The processor, in words."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def peak_memory_mb() -> float:
    """The most memory this process has held (resident), in MB of 10^6 bytes.

    On Linux from /proc: getrusage counts what the parent held before this program began.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
