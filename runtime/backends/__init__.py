"""Backends by name. Each is imported only when asked for: its library may not be installed."""

from __future__ import annotations

from ..bundle import Bundle
from ..manifest import TENSORRT_TARGETS
from .errors import BackendError
from .interface import Backend, DecodingState, Limits, Step

ONNX_RUNTIME = ("onnxruntime", "onnxruntime-cuda")
"""Backends that run graphs."""

BACKENDS = (*ONNX_RUNTIME, *sorted(TENSORRT_TARGETS))


def default_backend(bundle: Bundle) -> str:
    """What runs a bundle: engines the package that made them, graphs ONNX Runtime."""
    return bundle.manifest.target if bundle.manifest.engines is not None else "onnxruntime"


def open_backend(bundle: Bundle, name: str | None, threads: int | None) -> Backend:
    """Make a bundle ready to run.

    Args:
        name: one of `BACKENDS`; `default_backend` if None
        threads: processor threads to use, all cores if None

    Raises:
        BackendError: unknown name, missing library or device, or a bundle it cannot run.
    """
    chosen = default_backend(bundle) if name is None else name
    if chosen not in BACKENDS:
        raise BackendError(f"unknown backend {chosen!r}, expected one of: {', '.join(BACKENDS)}")
    if chosen in ONNX_RUNTIME:
        return _onnx_runtime(bundle, chosen, threads)
    return _tensorrt(bundle, chosen)


def _onnx_runtime(bundle: Bundle, name: str, threads: int | None) -> Backend:
    manifest = bundle.manifest
    if manifest.engines is not None:
        raise BackendError(
            f"{bundle.directory} holds engines: expected backend {manifest.target}, which runs "
            "them, found one that runs ONNX graphs"
        )
    try:
        from .onnx_runtime import OnnxRuntimeBackend
    except ImportError as error:
        raise BackendError(
            f"the package onnxruntime cannot be imported ({error}): pip install 'dragoman[cpu]' "
            "(or 'dragoman[cuda]' for an NVIDIA GPU)"
        ) from error
    if name == "onnxruntime":
        return OnnxRuntimeBackend(bundle, threads=threads)
    from .onnx_runtime_cuda.backend import open_cuda_provider

    return open_cuda_provider(bundle)


def _tensorrt(bundle: Bundle, name: str) -> Backend:
    manifest = bundle.manifest
    if manifest.engines is None:
        raise BackendError(
            f"{bundle.directory} holds ONNX graphs: backend {name} runs engines, which dragoman "
            f"build --target {name} makes of its checkpoint"
        )
    if manifest.target != name:
        raise BackendError(
            f"{bundle.directory} holds engines of {manifest.target}: expected that backend, found "
            f"{name}"
        )
    from .cuda.driver import CudaDevice
    from .tensorrt.backend import TensorRTBackend
    from .tensorrt.compatibility import usable_package

    package, _ = usable_package(bundle, manifest.engines)
    return TensorRTBackend(bundle, manifest.engines, package, CudaDevice())


__all__ = [
    "BACKENDS",
    "Backend",
    "DecodingState",
    "Limits",
    "Step",
    "default_backend",
    "open_backend",
]
