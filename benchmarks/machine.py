"""Describes the machine."""

import os
import platform
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
