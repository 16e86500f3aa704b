"""The description of the machine, and the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import dragoman
from dragoman.files.regular_files import user_cache
from dragoman.runtime.backends import cuda
from dragoman.runtime.backends import processor as module
from dragoman.runtime.backends.cuda import Gpu
from dragoman.runtime.backends.machine import cgroup_limits, describe_machine, memory
from dragoman.runtime.backends.onnxruntime.cpu import saturates
from dragoman.runtime.backends.processor import processor

X86 = """processor\t: 0
model name\t: Some Xeon @ 2 GHz
flags\t\t: fpu sse2 avx avx2 fma avx512f avx512_vnni amx_int8

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM = """processor\t: 0
Features\t: fp asimd asimddp i8mm sve
CPU implementer\t: 0x41
CPU part\t: 0xd0c
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    processor.cache_clear()
    yield
    processor.cache_clear()


@pytest.mark.parametrize(
    ("text", "name", "features"),
    [
        (X86, "Some Xeon @ 2 GHz", {"avx", "avx2", "fma", "avx512f", "avx512_vnni", "amx_int8"}),
        (ARM, "0x41 0xd0c", {"asimd", "asimddp", "i8mm", "sve"}),
    ],
)
def test_the_first_core_describes_the_processor(
    text: str, name: str, features: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    assert (processor()[0], set(processor()[1])) == (name, features)


def test_a_system_without_a_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "none")
    name, features = processor()
    assert name
    assert features == ()


def test_versions_and_the_probe_are_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "__version__", "0.0.1")
    found = describe_machine()
    assert found.saturates == saturates()
    assert found.gpu is None
    assert next(iter(found.versions)) == "dragoman"
    assert found.versions["dragoman"] == dragoman.__version__
    assert found.versions["numpy"] == np.__version__
    assert found.versions["tokenizers"] == "0.0.1"
    assert "onnxruntime" in found.versions
    assert "tokenizers 0.0.1" in str(found)


def test_backends_of_a_gpu_name_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / "version", "580.95.05\n")
    monkeypatch.setattr(
        "dragoman.runtime.backends.cuda.device.DRIVER_VERSION", tmp_path / "version"
    )
    assert "NVIDIA driver" not in describe_machine().versions
    monkeypatch.setattr(cuda, "find_gpu", lambda index: Gpu("Some GPU", "8.9", "13.0"))
    found = describe_machine("onnxruntime-cuda")
    assert found.gpu == ("Some GPU", "8.9", "13.0")
    assert found.versions["NVIDIA driver"] == "580.95.05"
    assert str(found).startswith("Some GPU, ")


def test_cudnn_is_part_of_what_numbers_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, name: str, mode: int = 0) -> None:
            if not name.endswith("libcudnn.so.9"):
                raise OSError(name)

        def cudnnGetVersion(self) -> int:  # noqa: N802
            return 91_305

    describe_machine("tensorrt-rtx")  # imports a package, which loads libraries of its own
    monkeypatch.setattr("ctypes.CDLL", Library)
    assert describe_machine("onnxruntime-cuda").versions["cuDNN"] == "9.13.5"
    for other in ("onnxruntime", "tensorrt-rtx"):
        assert "cuDNN" not in describe_machine(other).versions


def test_a_missing_library_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "dragoman.runtime.backends.onnxruntime.cpu", raising=False)
    found = describe_machine()
    assert "onnxruntime" not in found.versions
    assert found.saturates is None


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache("kind", "file") == tmp_path / "dragoman" / "kind" / "file"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache("file") == tmp_path / "home" / ".cache" / "dragoman" / "file"


WITHOUT_HOME = """
import pwd

def unknown(user):
    raise KeyError(user)

pwd.getpwuid = unknown
from dragoman.files.regular_files import user_cache
from dragoman.runtime.serving.arrangement import Arrangement, recall, remember
from types import SimpleNamespace
manifest = SimpleNamespace(files=())
print(user_cache("file"), recall(manifest), remember(manifest, Arrangement(1, 1, 1)), sep="|")
"""


def test_a_user_without_home_has_no_cache() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, "-c", WITHOUT_HOME]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("None|None|not kept for dragoman serve: the user has no home")


def test_control_groups_limit_cores_and_memory(tmp_path: Path) -> None:
    """The narrowest limit of a group and those above it counts, in both versions."""
    own = tmp_path / "own"
    own.write_text("0::/pod/container\n")
    assert cgroup_limits(tmp_path, own) == (None, None)
    write(tmp_path / "pod/cpu.max", "150000 100000\n")
    write(tmp_path / "pod/memory.max", "2000000000\n")
    write(tmp_path / "pod/container/cpu.max", "max 100000\n")
    write(tmp_path / "pod/container/memory.max", "max\n")
    assert cgroup_limits(tmp_path, own) == (1.5, 2_000_000_000)
    own.write_text("4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/\n")
    write(tmp_path / "cpu/a/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu/a/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "memory/a/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limits(tmp_path, own) == (None, None)
    write(tmp_path / "cpu/a/cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "memory/memory.limit_in_bytes", "1000\n")
    assert cgroup_limits(tmp_path, own) == (0.5, 1000)
    assert cgroup_limits(tmp_path, tmp_path / "none") == (None, None)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_memory_is_that_of_the_system() -> None:
    total, available = memory()
    assert 0 < available <= total
    assert total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
