"""An engine, loaded."""

from __future__ import annotations

from typing import Any

from ...bundle import Bundle
from ..errors import BackendError
from .compatibility import usable_package
from .messages import Messages, make_logger
from .packages import Package


def load_engine(package: Package, bundle: Bundle, file: str) -> Any:
    """An ICudaEngine of a bundle.

    Raises:
        BackendError: the package does not load it; says why.
    """
    trt = package.module
    messages = Messages()
    logger = make_logger(trt, messages)
    engine = trt.Runtime(logger).deserialize_cuda_engine(bundle.path(file).read_bytes())
    if engine is None:
        raise BackendError(
            f"{bundle.path(file)}: {package.name} {package.version} cannot load this engine: "
            f"{messages.reason}"
        )
    return engine


def device_memory(bundle: Bundle, file: str) -> int:
    """Bytes that an engine takes on the device to run, its weights and tensors apart.

    Raises:
        BackendError: there is no GPU that runs it.
    """
    engines = bundle.manifest.engines
    if engines is None:
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package, _ = usable_package(bundle, engines)
    return int(load_engine(package, bundle, file).device_memory_size_v2)
