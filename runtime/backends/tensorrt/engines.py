"""Checks whether a bundle's engines run on this machine, and loads them.

The checks come first, as TensorRT's own messages are about checksums and serialization versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...format.bundle import Bundle
from ...format.manifest import TensorRTEngines
from ..cuda import Device, Gpu, find_gpu
from ..interface import BackendError
from .packages import Messages, Package, compute_capabilities, find_package, logger_of

OTHER_MACHINE = "run it on a machine with one, or build a bundle for target cpu"


def usable_package(bundle: Bundle, engines: TensorRTEngines, index: int = 0) -> Package:
    """Return the package that runs a bundle's engines on a GPU of this machine.

    The GPU is the current device of this thread afterwards.
    """
    target = bundle.manifest.target
    try:
        gpu = find_gpu(index)
    except BackendError as error:
        raise BackendError(
            f"{bundle.directory}: engines of {target} need an NVIDIA GPU ({error}): {OTHER_MACHINE}"
        ) from error
    package = find_package(target)
    # No other version of the package loads the engines.
    if engines.version != package.version:
        raise BackendError(
            f"{bundle.directory}: its engines were built by {package.name} {engines.version}, "
            f"found {package.version}: {_other_version(package, engines, gpu)}"
        )
    required, supported = engines.cuda_version, gpu.cuda.partition(".")[0]
    if required.isdigit() and int(supported) < int(required):
        raise BackendError(
            f"{bundle.directory}: its engines were built for CUDA {required}, the driver of this "
            f"machine runs up to {gpu.cuda}: install a newer driver"
        )
    capabilities = engines.compute_capabilities
    if capabilities and gpu.compute_capability not in capabilities:
        raise BackendError(
            f"{bundle.directory}: its engines are for compute capability "
            f"{', '.join(capabilities)}, found {gpu.compute_capability} ({gpu.name}): "
            f"{engines_for(package, gpu)}"
        )
    Device(index).enter()  # on which the package judges the engines
    check_validity(bundle, engines, package, gpu)
    return package


def check_validity(bundle: Bundle, engines: TensorRTEngines, package: Package, gpu: Gpu) -> None:
    """Check the headers of engines, if the package supports it (TensorRT-RTX)."""
    trt = package.module
    if not hasattr(trt.Runtime, "get_engine_validity"):
        return
    with Messages():
        runtime = trt.Runtime(logger_of(trt))
        for graph in bundle.manifest.graphs.values():
            with bundle.path(graph.file).open("rb") as file:
                header = file.read(runtime.engine_header_size)
            validity, diagnostics = runtime.get_engine_validity(header)
            if validity == trt.EngineValidity.INVALID:
                kinds = getattr(trt, "EngineInvalidityDiagnostics", None)
                members = getattr(kinds, "__members__", {}).items()
                reasons = [name for name, kind in members if int(kind) & int(diagnostics)]
                raise BackendError(
                    f"{bundle.path(graph.file)}: {package.name} {package.version} says that this "
                    f"engine does not run on {gpu.name}, compute capability "
                    f"{gpu.compute_capability} "
                    f"({', '.join(reasons) or f'diagnostics {int(diagnostics)}'}): "
                    f"{_advice(reasons, engines, package, gpu)}"
                )


def engines_for(package: Package, gpu: Gpu) -> str:
    """Return advice on how to get engines for a GPU, or on what else runs there.

    TensorRT builds on the machine itself, for compute capability 7.5 and up, which CUDA 13
    supports. TensorRT-RTX builds for those that it lists.
    """
    if float(gpu.compute_capability) < OLDEST_CAPABILITY:
        return f"no engines are built for it: {GRAPHS}"
    if package.name == "tensorrt":
        return f"{REBUILD} tensorrt on this machine"
    if gpu.compute_capability in compute_capabilities(package):
        only_fp16 = " --precision fp16" if gpu.compute_capability == TURING else ""
        capability = f"--compute-capability {gpu.compute_capability}"
        return f"{REBUILD} {package.name} {capability}{only_fp16}"
    return (
        f"{package.name} {package.version} builds no engines for it: {REBUILD} tensorrt on this "
        f"machine, or {GRAPHS}"
    )


OLDEST_CAPABILITY = 7.5
TURING = "7.5"
"""A compute capability for which TensorRT-RTX has kernels of fp16 only."""

REBUILD = "rebuild them with --target"
GRAPHS = "build graphs with --target neutral, and run them with --backend onnxruntime-cuda"


def _other_version(package: Package, engines: TensorRTEngines, gpu: Gpu) -> str:
    return f"pip install {package.name}=={engines.version}, or {engines_for(package, gpu)}"


def _advice(reasons: Sequence[str], engines: TensorRTEngines, package: Package, gpu: Gpu) -> str:
    rebuild = engines_for(package, gpu)
    known = {
        "VERSION_MISMATCH": _other_version(package, engines, gpu),
        "UNSUPPORTED_CC": rebuild,
        "OLD_CUDA_DRIVER": "install a newer NVIDIA driver",
        "OLD_CUDA_RUNTIME": (
            f"pip install --upgrade --force-reinstall {package.name}, which brings the CUDA "
            "runtime that it needs"
        ),
        "INSUFFICIENT_GPU_MEMORY": (
            "free memory of the GPU, choose another with --device, or build with smaller "
            "--profile, --source-length or --capacity"
        ),
        "MALFORMED_ENGINE": f"copy the bundle again, or {rebuild}",
        "CUDA_ERROR": "repair the CUDA driver or runtime; dragoman doctor shows what is found",
    }
    ways = [known[reason] for reason in reasons if reason in known]
    return "; ".join(ways) or rebuild


@dataclass(frozen=True)
class LoadedEngine:
    """An engine on the device."""

    name: str
    loaded: Any
    """The ICudaEngine."""
    messages: Messages

    @property
    def memory(self) -> int:
        """The scratch memory of a run in bytes, besides weights and tensors."""
        return int(self.loaded.device_memory_size_v2)


def load_engine(package: Package, bundle: Bundle, file: str) -> LoadedEngine:
    """Load an engine onto the device."""
    trt, messages = package.module, Messages()
    with messages:
        runtime = trt.Runtime(logger_of(trt))
        engine = runtime.deserialize_cuda_engine(bundle.path(file).read_bytes())
    if engine is None:
        raise BackendError(
            f"{bundle.path(file)}: {package.name} {package.version} cannot load this engine: "
            f"{messages.reason}"
        )
    return LoadedEngine(file, engine, messages)


def device_memory(bundle: Bundle, file: str) -> int:
    """Return the scratch memory of an engine's run in bytes, besides weights and tensors."""
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package = usable_package(bundle, engines)
    return load_engine(package, bundle, file).memory
