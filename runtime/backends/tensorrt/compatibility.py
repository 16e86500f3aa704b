"""Whether engines can run here, checked before they are loaded, and what to do if they cannot.

TensorRT's own messages speak of checksums and serialization versions instead.
"""

from __future__ import annotations

from typing import Any

from ...format.bundle import Bundle
from ...format.executables import TensorRTEngines
from ..cuda import Gpu, find_gpu
from ..errors import BackendError
from .packages import Package, find_package

ELSEWHERE = "run it on a machine with one, or build a bundle for target cpu"


def usable_package(bundle: Bundle, engines: TensorRTEngines) -> tuple[Package, Gpu]:
    """The package and the GPU that run a bundle's engines.

    Raises:
        BackendError: there is no GPU, the package is missing or of another version, or the engines
            are not for this GPU; says what to do.
    """
    target = bundle.manifest.target
    try:
        gpu = find_gpu()
    except BackendError as error:
        raise BackendError(
            f"{bundle.directory}: engines of {target} need an NVIDIA GPU ({error}): {ELSEWHERE}"
        ) from error
    package = find_package(target)
    check_version(bundle, engines, package)
    check_cuda(bundle, engines, gpu)
    check_gpu(bundle, engines, gpu)
    check_validity(bundle, package, gpu)
    return package, gpu


def check_version(bundle: Bundle, engines: TensorRTEngines, package: Package) -> None:
    """
    Raises:
        BackendError: the engines were built by another version, and only that one loads them.
    """
    if engines.version != package.version:
        raise BackendError(
            f"{bundle.directory}: its engines were built by {package.name} {engines.version}, "
            f"found {package.version}: pip install {package.name}=={engines.version}, or "
            "rebuild them"
        )


def check_cuda(bundle: Bundle, engines: TensorRTEngines, gpu: Gpu) -> None:
    """
    Raises:
        BackendError: the driver is too old for the CUDA version that the engines were built for.
    """
    required, supported = engines.cuda_version, gpu.cuda.partition(".")[0]
    if required.isdigit() and int(supported) < int(required):
        raise BackendError(
            f"{bundle.directory}: its engines were built for CUDA {required}, the driver of this "
            f"machine runs up to {gpu.cuda}: install a newer driver"
        )


def check_gpu(bundle: Bundle, engines: TensorRTEngines, gpu: Gpu) -> None:
    """
    Raises:
        BackendError: the engines were built for other GPUs.
    """
    supported = engines.compute_capabilities
    if supported and gpu.compute_capability not in supported:
        raise BackendError(
            f"{bundle.directory}: its engines are for compute capability {', '.join(supported)}, "
            f"found {gpu.compute_capability} ({gpu.name}): {_rebuild(bundle.manifest.target, gpu)}"
        )


def check_validity(bundle: Bundle, package: Package, gpu: Gpu) -> None:
    """Ask the package itself, if it can judge an engine by its header (TensorRT-RTX).

    Raises:
        BackendError: it says that an engine will not run here.
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
    """The names of the reasons set in a bit field."""
    kinds = getattr(trt, "EngineInvalidityDiagnostics", None)
    members = getattr(kinds, "__members__", {})
    names = [name for name, kind in members.items() if int(kind) & int(diagnostics)]
    return ", ".join(names) or f"diagnostics {diagnostics}"
