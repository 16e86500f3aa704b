"""ONNX Runtime's CUDA provider, running a bundle's graphs. See `interface.Backend`."""

from __future__ import annotations

from functools import partial

import onnxruntime

from ....format.bundle import Bundle
from ...cuda import Device, find_gpu
from ...cuda.backend import DeviceBackend
from ...errors import BackendError
from ...interface import Limits
from .sessions import PROVIDER, OpenSessions, open_sessions
from .sizes import PositionRounding
from .workspace import ProviderWorkspace


class CudaProviderBackend(DeviceBackend):
    """Every batch has a workspace with its own sessions, reused by later batches, because the
    provider binds a session to one stream.
    """

    def __init__(self, bundle: Bundle, device: Device, open_sessions: OpenSessions) -> None:
        super().__init__(bundle.manifest, device, PositionRounding(bundle.manifest.model))
        self._open_sessions = open_sessions
        self._free.append(self._new_workspace())  # fails now if the graphs cannot be loaded

    @property
    def limits(self) -> Limits:
        return Limits()

    def rows_that_fit(self, source: int) -> None:
        """ONNX Runtime does not say what it will need."""

    def _new_workspace(self) -> ProviderWorkspace:
        return ProviderWorkspace(self._device, self._preparing, self.manifest, self._open_sessions)


def open_backend(bundle: Bundle, threads: int | None) -> CudaProviderBackend:
    """
    Args:
        threads: of the processor, which has little to do

    Raises:
        BackendError: the provider is not installed, or there is no GPU.
    """
    if PROVIDER not in onnxruntime.get_available_providers():
        raise BackendError(
            f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}: use the backend "
            "onnxruntime, or, on a machine with an NVIDIA GPU, replace the package: "
            "pip uninstall onnxruntime; pip install 'dragoman[cuda]'"
        )
    try:
        find_gpu()
    except BackendError as error:
        raise BackendError(f"{PROVIDER}: {error}: use the backend onnxruntime") from error
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries as pip installed them
    from ...cuda.driver import CudaDevice

    return CudaProviderBackend(bundle, CudaDevice(), partial(open_sessions, bundle))
