"""Finds the packages TensorRT-RTX and TensorRT, and handles their messages and caches.

Differences between them and between versions are found by feature tests (`hasattr`). Caches belong
to a user, a package and its version, those of compiled kernels also to a GPU and its driver. They
only save time, so a failure is at most a warning.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from dragoman.files.regular_files import NO_HOME, user_cache

from ..interface import BackendError

log = logging.getLogger(__name__)

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
    """An installed package."""

    name: str
    module: Any
    version: str
    cuda_version: str
    """CUDA version that the package was built for, such as "13"; or "unknown"."""


def find_package(target: str) -> Package:
    """Import the package that builds and runs a target's engines."""
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


def compute_capabilities(package: Package) -> dict[str, Any]:
    """Return the compute capabilities that a package can build for, in order.

    They are members of its ComputeCapability by their numbers: SM89 is "8.9". If there are none, it
    builds for the GPU of the machine that it runs on.
    """
    kinds = getattr(package.module, "ComputeCapability", None)
    known = {
        f"{name[2:-1]}.{name[-1]}": value
        for name, value in getattr(kinds, "__members__", {}).items()
        if re.fullmatch(r"SM\d{2,}", name)
    }
    return dict(sorted(known.items(), key=lambda item: float(item[0])))


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


MOST_MESSAGES = 1000
"""How many messages of a kind are kept, the newest ones."""


class Messages:
    """TensorRT's warnings and errors in order of arrival, for error messages.

    In a `with` statement, it receives what TensorRT reports to this thread, and what it reports to
    threads that receive nothing, which are TensorRT's own.
    """

    def __init__(self) -> None:
        self.warnings: deque[str] = deque(maxlen=MOST_MESSAGES)
        self.errors: deque[str] = deque(maxlen=MOST_MESSAGES)

    @property
    def reason(self) -> str:
        """The reason for a failure in one line; the last message is the most specific."""
        relevant = [m for m in self.errors if NO_DRIVER not in m] or self.errors
        return " ".join(relevant[-1].split()) if relevant else "TensorRT gives no reason"

    def __enter__(self) -> Self:
        _receivers.append((threading.get_ident(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _receivers.remove((threading.get_ident(), self))


_receivers: list[tuple[int, Messages]] = []
"""Messages that receive now, with the threads that entered them, the newest last."""

_loggers: list[tuple[Any, Any]] = []
"""The modules of packages, with their loggers."""

_making_a_logger = threading.Lock()


def logger_of(trt: Any) -> Any:
    """Return the logger of the package `trt`, which hands messages to `Messages`.

    TensorRT keeps one logger for the process, the first one that it is given.
    """
    with _making_a_logger:
        for module, logger in _loggers:
            if module is trt:
                return logger
        _loggers.append((trt, _new_logger(trt)))
        return _loggers[-1][1]


def _new_logger(trt: Any) -> Any:
    severities = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            is_error = severity in (severities.ERROR, severities.INTERNAL_ERROR)
            if is_error or severity == severities.WARNING:
                _deliver(message, is_error=is_error)

    return Logger()


def _deliver(message: str, *, is_error: bool) -> None:
    """Hand a message to the innermost receiver of this thread, or else to those of all threads."""
    thread, receivers = threading.get_ident(), list(_receivers)
    own = [messages for number, messages in receivers if number == thread]
    if not receivers:
        log.debug("TensorRT: %s", message)
    for messages in own[-1:] or [messages for _, messages in receivers]:
        (messages.errors if is_error else messages.warnings).append(message)


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
    """Write a cache atomically; return a warning if that fails.

    Of two threads or processes, the last one wins.
    """
    if file is None:
        return f"not kept for the next time: {NO_HOME}"
    partial: Path | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name, delete=False) as made:
            partial = Path(made.name)
            made.write(data)
        partial.replace(file)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()
        return f"not kept for the next time: {error.strerror} ({file})"
    return None
