"""Backends by name. Each is imported only when asked for: its library may not be installed."""

from __future__ import annotations

from ..bundle import Bundle
from .errors import BackendError
from .interface import Backend, DecodingState, Step

BACKENDS = ("onnxruntime", "onnxruntime-cuda")


def open_backend(bundle: Bundle, name: str, threads: int | None) -> Backend:
    """Make a bundle ready to run.

    Args:
        name: one of `BACKENDS`
        threads: processor threads to use, all cores if None

    Raises:
        BackendError: unknown name, missing library or device, or a bundle it cannot run.
    """
    try:
        from . import onnx_runtime
    except ImportError as error:
        raise BackendError(
            f"the package onnxruntime cannot be imported ({error}): pip install 'dragoman[cpu]' "
            "(or 'dragoman[cuda]' for an NVIDIA GPU)"
        ) from error

    match name:
        case "onnxruntime":
            return onnx_runtime.OnnxRuntimeBackend(bundle, device="cpu", threads=threads)
        case "onnxruntime-cuda":
            return onnx_runtime.OnnxRuntimeBackend(bundle, device="cuda", threads=threads)
        case _:
            raise BackendError(f"unknown backend {name!r}, expected one of: {', '.join(BACKENDS)}")


__all__ = ["BACKENDS", "Backend", "DecodingState", "Step", "open_backend"]
