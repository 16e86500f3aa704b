"""Checks whether a bundle's engines run on this machine, and loads them.

The checks come before loading, since TensorRT's own messages are about checksums and serialization
versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...format.bundle import Bundle
from ...format.manifest import TensorRTEngines
from ..cuda import Device, Gpu, find_gpu
from ..interface import BackendError
from .packages import Messages, Package, find_package, make_logger

OTHER_MACHINE = "run it on a machine with one, or build a bundle for target cpu"


def usable_package(bundle: Bundle, engines: TensorRTEngines, index: int = 0) -> Package:
    """Return the package that runs a bundle's engines on a GPU of this machine.

    The GPU is the current device of this thread afterwards.

    Args:
        index: number of the GPU

    Raises:
        BackendError: there is no GPU, the package is missing or of another version, or the engines
            are not for this GPU; states what to do.
        DragomanError: there are fewer GPUs.
    """
    target = bundle.manifest.target
    try:
        gpu = find_gpu(index)
    except BackendError as error:
        raise BackendError(
            f"{bundle.directory}: engines of {target} need an NVIDIA GPU ({error}): {OTHER_MACHINE}"
        ) from error
    package = find_package(target)
    _check_version(bundle, engines, package)
    _check_cuda(bundle, engines, gpu)
    _check_gpu(bundle, engines, gpu)
    Device(index).enter()  # on which the package judges the engines
    check_validity(bundle, package, gpu)
    return package


def _check_version(bundle: Bundle, engines: TensorRTEngines, package: Package) -> None:
    """Check that this version of the package built the engines; other versions cannot load them."""
    if engines.version != package.version:
        raise BackendError(
            f"{bundle.directory}: its engines were built by {package.name} {engines.version}, "
            f"found {package.version}: pip install {package.name}=={engines.version}, or "
            "rebuild them"
        )


def _check_cuda(bundle: Bundle, engines: TensorRTEngines, gpu: Gpu) -> None:
    """Check that the driver supports the CUDA version of the engines."""
    required, supported = engines.cuda_version, gpu.cuda.partition(".")[0]
    if required.isdigit() and int(supported) < int(required):
        raise BackendError(
            f"{bundle.directory}: its engines were built for CUDA {required}, the driver of this "
            f"machine runs up to {gpu.cuda}: install a newer driver"
        )


def _check_gpu(bundle: Bundle, engines: TensorRTEngines, gpu: Gpu) -> None:
    """Check that the engines were built for this GPU."""
    supported = engines.compute_capabilities
    if supported and gpu.compute_capability not in supported:
        raise BackendError(
            f"{bundle.directory}: its engines are for compute capability {', '.join(supported)}, "
            f"found {gpu.compute_capability} ({gpu.name}): {_rebuild(bundle.manifest.target, gpu)}"
        )


def check_validity(bundle: Bundle, package: Package, gpu: Gpu) -> None:
    """Check the headers of engines, if the package supports it (TensorRT-RTX).

    Raises:
        BackendError: according to the package, an engine does not run here.
    """
    trt = package.module
    if not hasattr(trt.Runtime, "get_engine_validity"):
        return
    runtime = trt.Runtime(trt.Logger(trt.Logger.Severity.INTERNAL_ERROR))
    for graph in bundle.manifest.graphs.values():
        with bundle.path(graph.file).open("rb") as file:
            header = file.read(runtime.engine_header_size)
        validity, diagnostics = runtime.get_engine_validity(header)
        if validity == trt.EngineValidity.INVALID:
            raise BackendError(
                f"{bundle.path(graph.file)}: {package.name} {package.version} says that this "
                f"engine does not run on {gpu.name}, compute capability {gpu.compute_capability} "
                f"({_names(trt, diagnostics)}): {_rebuild(package.name, gpu)}"
            )


def _rebuild(target: str, gpu: Gpu) -> str:
    rebuild = f"rebuild them with --target {target}"
    if target == "tensorrt":
        return f"{rebuild} on this machine"
    return f"{rebuild} --compute-capability {gpu.compute_capability}"


def _names(trt: Any, diagnostics: int) -> str:
    """Return the names of the reasons set in a bit field."""
    kinds = getattr(trt, "EngineInvalidityDiagnostics", None)
    members = getattr(kinds, "__members__", {})
    names = [name for name, kind in members.items() if int(kind) & int(diagnostics)]
    return ", ".join(names) or f"diagnostics {diagnostics}"


@dataclass(frozen=True)
class LoadedEngine:
    """An engine on the device.

    Attributes:
        name: the engine's file
        loaded: the ICudaEngine
        messages: TensorRT's messages about the engine
    """

    name: str
    loaded: Any
    messages: Messages

    @property
    def memory(self) -> int:
        """The scratch memory of a run in bytes, besides weights and tensors."""
        return int(self.loaded.device_memory_size_v2)


def load_engine(package: Package, bundle: Bundle, file: str) -> LoadedEngine:
    """Load an engine onto the device.

    Raises:
        BackendError: the package does not load the engine; states the reason.
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
    """Return the scratch memory of an engine's run in bytes, besides weights and tensors.

    Raises:
        BackendError: there is no GPU that runs the engine.
    """
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package = usable_package(bundle, engines)
    return load_engine(package, bundle, file).memory
