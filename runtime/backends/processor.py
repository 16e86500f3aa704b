"""The name of the machine's processor, and its instruction sets."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "sme"),
)
"""The instruction sets by which math libraries select kernels, as Linux names them."""


@functools.cache
def processor() -> tuple[str, tuple[str, ...]]:
    """Return the name of the processor's model, and its `FEATURES`.

    Linux describes both; elsewhere, the name is what Python knows, without features.
    """
    fields: dict[str, str] = {}
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as file:
            fields = dict(_first_block(file))
    except OSError:
        pass
    # x86 has "flags", Arm "Features" and numbers in place of a name.
    listed = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()
    numbers = [fields[key] for key in ("CPU implementer", "CPU part") if key in fields]
    name = fields.get("model name") or " ".join(numbers)
    name = name or platform.processor() or platform.machine() or "unknown processor"
    return name, tuple(feature for feature in FEATURES if feature in listed)


def _first_block(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of the first core; reading all cores of a large machine takes long."""
    for line in lines:
        if not line.strip():
            return
        key, _, value = line.partition(":")
        yield key.strip(), value.strip()
