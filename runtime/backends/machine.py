"""Describes the machine and the libraries that a bundle's numbers depend on."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import __version__
from dragoman.files.regular_files import memory_of_machine

from .interface import BackendError
from .processor import processor
from .table import BACKENDS

if TYPE_CHECKING:
    from .cuda import Gpu

CUDNN = "libcudnn.so.9"

LIBRARIES = ("numpy", "tokenizers")
"""Libraries that take part in every output, besides the backend's."""


@dataclass(frozen=True)
class Machine:
    """What a bundle's numbers depend on besides its files."""

    system: str
    """Operating system and architecture, such as "Linux x86_64"."""
    processor: str
    features: tuple[str, ...]
    """Instruction sets of the processor, of `FEATURES`; empty where the system does not list
    them."""
    saturates: bool | None
    """Whether 8-bit products saturate, so that slower exact kernels are used; None: no ONNX Runtime
    to find out with."""
    gpu: Gpu | None
    versions: dict[str, str]
    """Versions of the libraries by name, "dragoman" first, of cuDNN where the backend uses it, and
    of a GPU's driver."""

    def __str__(self) -> str:
        parts = [self.processor if self.gpu is None else f"{self.gpu.name}, {self.processor}"]
        parts += [f"{name} {version}" for name, version in self.versions.items()]
        return ", ".join(parts)


def describe_machine(backend: str = "onnxruntime", *libraries: str, gpu: int = 0) -> Machine:
    """Describe this machine, as a backend sees it, as far as it can be found out.

    Args:
        libraries: further Python packages whose versions count
    """
    record = next(record for record in BACKENDS if record.name == backend)
    name, features = processor()
    on_gpu = record.device == "cuda"
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=name,
        features=features,
        saturates=_saturates(record.name),
        gpu=_gpu(gpu) if on_gpu else None,
        versions={
            "dragoman": __version__,
            **dict(_versions(*LIBRARIES, *libraries, record.library)),
            **dict(_cudnn() if record.name == "onnxruntime-cuda" else ()),
            **(_driver() if on_gpu else {}),
        },
    )


def memory() -> tuple[int, int]:
    """Return the bytes of physical memory, all and available."""
    file = Path("/proc/meminfo")
    if file.exists():
        sizes = dict(re.findall(r"(\w+):\s+(\d+) kB", file.read_text()))
        return int(sizes["MemTotal"]) << 10, int(sizes["MemAvailable"]) << 10
    return memory_of_machine(), memory_of_machine()


def free_swap() -> int:
    """Return the bytes of swap space that are free; 0 where the system does not say."""
    file = Path("/proc/meminfo")
    found = re.search(r"SwapFree:\s+(\d+) kB", file.read_text()) if file.exists() else None
    return int(found[1]) << 10 if found else 0


def cgroup_limits(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> tuple[float | None, int | None]:
    """Return the cores and the bytes of memory that control groups allow; None: no limit."""
    lines = own.read_text().splitlines() if own.exists() else []
    cores, sizes = [], []
    for _, kinds, path in (line.split(":", 2) for line in lines):
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            quota = _words(root / folder / "cpu.max")
            sizes += _words(root / folder / "memory.max")
            if "cpu" in kinds.split(","):
                place = root / "cpu" / folder
                quota = _words(place / "cpu.cfs_quota_us") + _words(place / "cpu.cfs_period_us")
            if "memory" in kinds.split(","):
                sizes += _words(root / "memory" / folder / "memory.limit_in_bytes")
            if len(quota) == 2 and quota[0].isdecimal():
                cores.append(int(quota[0]) / int(quota[1]))
    limits = [int(size) for size in sizes if size.isdecimal() and int(size) < 1 << 60]
    return min(cores, default=None), min(limits, default=None)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _saturates(backend: str) -> bool | None:
    module = ".openvino" if backend == "openvino" else ".onnxruntime.cpu"
    try:
        found: bool = import_module(module, __package__).saturates()
        return found
    except Exception:  # missing or broken: libraries raise what they like
        return None


def _gpu(index: int) -> Gpu | None:
    from .cuda import find_gpu  # which the processor does not need

    try:
        return find_gpu(index)
    except BackendError:
        return None


def _driver() -> dict[str, str]:
    from .cuda import gpu_driver

    driver = gpu_driver()
    return {"NVIDIA driver": driver} if driver else {}


def _cudnn() -> Iterator[tuple[str, str]]:
    """Yield the version of cuDNN, of NVIDIA's package if it is installed, as ONNX Runtime does."""
    with suppress(Exception):  # not installed, or broken
        own = import_module("nvidia.cudnn")
        ctypes.CDLL(str(Path(next(iter(own.__path__)), "lib", CUDNN)), ctypes.RTLD_GLOBAL)
    with suppress(OSError, AttributeError):  # a library of this name that is loaded is not replaced
        number = ctypes.CDLL(CUDNN).cudnnGetVersion()
        yield "cuDNN", f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _versions(*names: str) -> Iterator[tuple[str, str]]:
    """Yield the versions of the libraries that can be imported, by their own word."""
    for name in names:
        with suppress(Exception):  # not installed, or broken
            module = sys.modules.get(name) or import_module(name)
            version = str(getattr(module, "__version__", "unknown"))
            yield name, version.partition("-")[0]  # OpenVINO's goes on with a commit
