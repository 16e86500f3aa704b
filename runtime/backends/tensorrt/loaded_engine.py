"""An engine loaded onto the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...format.bundle import Bundle
from ...format.executables import TensorRTEngines
from ..errors import BackendError
from .compatibility import usable_package
from .messages import Messages, make_logger
from .packages import Package


@dataclass(frozen=True)
class LoadedEngine:
    """An engine on the device.

    Attributes:
        loaded: its ICudaEngine
        messages: TensorRT's messages about it
    """

    name: str
    loaded: Any
    messages: Messages

    @property
    def memory(self) -> int:
        """Scratch memory in bytes that it needs to run, besides weights and tensors."""
        return int(self.loaded.device_memory_size_v2)


def load_engine(package: Package, bundle: Bundle, file: str) -> LoadedEngine:
    """
    Raises:
        BackendError: the package does not load it; says why.
    """
    trt, messages = package.module, Messages()
    runtime = trt.Runtime(make_logger(trt, messages))
    engine = runtime.deserialize_cuda_engine(bundle.path(file).read_bytes())
    if engine is None:
        raise BackendError(
            f"{bundle.path(file)}: {package.name} {package.version} cannot load this engine: "
            f"{messages.reason}"
        )
    return LoadedEngine(file, engine, messages)


def device_memory(bundle: Bundle, file: str) -> int:
    """Scratch memory in bytes that an engine needs to run, besides weights and tensors.

    Raises:
        BackendError: there is no GPU that runs it.
    """
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package, _ = usable_package(bundle, engines)
    return load_engine(package, bundle, file).memory
