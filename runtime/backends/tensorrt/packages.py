"""Finds the packages TensorRT-RTX and TensorRT, and handles their messages and caches.

The packages share an API. Differences between them and between versions are found by feature tests
(`hasattr`). Caches belong to a user, a package and its version. They only save time, so a failure
is at most a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from dragoman.files.regular_files import NO_HOME, user_cache

from ..interface import BackendError

MODULES: dict[str, str] = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}

REQUIRED_API = (
    "Builder.build_serialized_network",
    "ICudaEngine.device_memory_size_v2",
    "LayerType.ATTENTION_INPUT",
    "LayerType.KV_CACHE_UPDATE",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
    "OnnxParser.parse_from_file",
)
"""Required API, which older versions lack."""


@dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes:
        name: pip name
        module: Python module
        version: version of the package, such as "1.7.1.116"
        cuda_version: CUDA version that the package was built for, such as "13"; or "unknown"
    """

    name: str
    module: Any
    version: str
    cuda_version: str


def find_package(target: str) -> Package:
    """Import the package that builds and runs a target's engines.

    Raises:
        BackendError: the package is not installed or too old, its libraries cannot be loaded, or
            the target has no engines.
    """
    if target not in MODULES:
        raise BackendError(f"target {target} has no engines: expected {' or '.join(MODULES)}")
    name = MODULES[target]
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"the package {target} cannot be imported ({error}): pip install 'dragoman[{target}]'"
        ) from error
    version = str(module.__version__)
    missing = [needed for needed in REQUIRED_API if not _has(module, needed)]
    if missing:
        raise BackendError(
            f"{target} {version} is too old, it has no {', '.join(missing)}: "
            f"pip install --upgrade {target}"
        )
    return Package(target, module, version, cuda_version(name))


def _has(module: Any, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def cuda_version(module: str) -> str:
    """Return the CUDA version from the name of a distribution, such as tensorrt_rtx_cu13_libs."""
    pattern = re.compile(rf"{module}[-_]cu(\d+)([-_](libs|bindings))?", re.IGNORECASE)
    versions = {
        match[1]
        for distribution in metadata.distributions()
        if (match := pattern.fullmatch(distribution.metadata["Name"] or ""))
    }
    return versions.pop() if len(versions) == 1 else "unknown"


NO_DRIVER = "CUDA driver version is insufficient"
"""A harmless error message of TensorRT in every build without a GPU."""


@dataclass
class Messages:
    """TensorRT's warnings and errors in order of arrival, for error messages."""

    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """The reason for a failure in one line; the last message is the most specific."""
        relevant = [m for m in self.errors if NO_DRIVER not in m] or self.errors
        return " ".join(relevant[-1].split()) if relevant else "TensorRT gives no reason"


def make_logger(trt: Any, messages: Messages) -> Any:
    """Create a logger of the package `trt` that collects messages instead of printing them."""
    severities = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (severities.ERROR, severities.INTERNAL_ERROR):
                messages.errors.append(message)
            elif severity == severities.WARNING:
                messages.warnings.append(message)

    return Logger()


def cache_file(package: Package, kind: str) -> Path | None:
    """Return the path of a file in the user's cache; None: the user has no home."""
    return user_cache(f"{package.name}-{package.version}.{kind}")


def read_cache(file: Path | None) -> bytes:
    """Return the contents of a cache; empty if the file does not exist or cannot be read."""
    if file is not None:
        with contextlib.suppress(OSError):
            return file.read_bytes()
    return b""


def write_cache(file: Path | None, data: bytes) -> str | None:
    """Write a cache atomically; if two processes write at once, the last one wins.

    Returns:
        a warning if the cache cannot be written, else None
    """
    if file is None:
        return f"not kept for the next time: {NO_HOME}"
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        return f"not kept for the next time: {error.strerror} ({file})"
    return None
