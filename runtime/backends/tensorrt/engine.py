"""An engine, loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...bundle import Bundle
from ..errors import BackendError
from .compatibility import usable_package
from .messages import Messages, make_logger
from .packages import Package


@dataclass(frozen=True)
class Engine:
    """An engine on the device.

    Attributes:
        loaded: its ICudaEngine
        messages: what TensorRT says of it
    """

    name: str
    loaded: Any
    messages: Messages

    @property
    def memory(self) -> int:
        """Bytes that it takes on the device to run, its weights and tensors apart."""
        return int(self.loaded.device_memory_size_v2)


def load_engine(package: Package, bundle: Bundle, file: str) -> Engine:
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
    return Engine(file, engine, messages)


def device_memory(bundle: Bundle, file: str) -> int:
    """Bytes that an engine takes on the device to run, its weights and tensors apart.

    Raises:
        BackendError: there is no GPU that runs it.
    """
    engines = bundle.manifest.engines
    if engines is None:
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package, _ = usable_package(bundle, engines)
    return load_engine(package, bundle, file).memory
