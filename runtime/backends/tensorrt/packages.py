"""The two packages of TensorRT, TensorRT-RTX and TensorRT. They share an API.

Differences between them and between versions are found by feature tests (`hasattr`).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ..errors import BackendError

MODULES: dict[str, str] = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}

NEEDED = (
    "Builder.build_serialized_network",
    "ICudaEngine.device_memory_size_v2",
    "LayerType.ATTENTION_INPUT",
    "LayerType.KV_CACHE_UPDATE",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
    "OnnxParser.parse_from_file",
)
"""API that older versions lack."""


@dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes:
        name: as pip knows it
        module: the Python module
        version: of the package, such as "1.7.1.116"
        cuda_version: the CUDA version it was built for, such as "13"; "unknown" if not stated
    """

    name: str
    module: Any
    version: str
    cuda_version: str


def find_package(target: str) -> Package:
    """Import the package that builds and runs a target's engines.

    Raises:
        BackendError: it is not installed, its libraries cannot be loaded, or it is too old; or the
            target has no engines.
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
    missing = [needed for needed in NEEDED if not _has(module, needed)]
    if missing:
        raise BackendError(
            f"{target} {version} is too old, it has no {', '.join(missing)}: "
            f"pip install --upgrade {target}"
        )
    return Package(target, module, version, _cuda_version(name))


def _has(module: Any, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def _cuda_version(module: str) -> str:
    """Only the names of the distributions state it, such as tensorrt_rtx_cu13_libs."""
    pattern = re.compile(rf"{module}[-_]cu(\d+)([-_](libs|bindings))?", re.IGNORECASE)
    versions = {
        match[1]
        for distribution in metadata.distributions()
        if (match := pattern.fullmatch(distribution.metadata["Name"] or ""))
    }
    return versions.pop() if len(versions) == 1 else "unknown"
