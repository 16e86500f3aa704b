"""ONNX Runtime's CUDA provider, running a bundle's graphs. See `interface.Backend`."""

from __future__ import annotations

from functools import partial

import onnxruntime

from ...bundle import Bundle
from ..cuda import Device, find_gpu
from ..cuda.backend import DeviceBackend
from ..errors import BackendError
from ..interface import Limits
from . import PRECISIONS
from .sessions import PROVIDER, OpenSessions, open_sessions
from .sizes import PositionRounding
from .workplace import ProviderWorkplace


class CudaProviderBackend(DeviceBackend):
    """Every batch has a workplace with sessions of its own, which is used again after it: the
    provider binds a session to one stream."""

    def __init__(self, bundle: Bundle, device: Device, open_sessions: OpenSessions) -> None:
        super().__init__(bundle.manifest, device, PositionRounding(bundle.manifest.model))
        self._open_sessions = open_sessions
        self._free.append(self._new_workplace())  # what cannot be loaded is told now

    @property
    def limits(self) -> Limits:
        return Limits()

    def rows_that_fit(self, source: int) -> None:
        """ONNX Runtime does not say what it will need."""

    def _new_workplace(self) -> ProviderWorkplace:
        return ProviderWorkplace(self._device, self._preparing, self.manifest, self._open_sessions)


def open_cuda_provider(bundle: Bundle) -> CudaProviderBackend:
    """
    Raises:
        BackendError: no such provider, no GPU, or a bundle whose graphs it does not run whole.
    """
    if PROVIDER not in onnxruntime.get_available_providers():
        raise BackendError(
            f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}: use the backend "
            "onnxruntime, or, on a machine with an NVIDIA GPU, replace the package: "
            "pip uninstall onnxruntime; pip install 'dragoman[cuda]'"
        )
    check_bundle(bundle)
    try:
        find_gpu()
    except BackendError as error:
        raise BackendError(f"{PROVIDER}: {error}: use the backend onnxruntime") from error
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries, where pip installed them
    from ..cuda.driver import CudaDevice

    return CudaProviderBackend(bundle, CudaDevice(), partial(open_sessions, bundle))


def check_bundle(bundle: Bundle) -> None:
    """
    Raises:
        BackendError: the provider lacks kernels for its graphs.
    """
    manifest = bundle.manifest
    if manifest.target != "neutral":
        raise BackendError(
            f"{bundle.directory}: its graphs are for target {manifest.target}, of whose operators "
            "the CUDA provider lacks many: expected target neutral (dragoman build --target "
            "neutral)"
        )
    if manifest.precision not in PRECISIONS:
        raise BackendError(
            f"{bundle.directory}: the CUDA provider has no ArgMax in {manifest.precision}: "
            f"expected {', '.join(PRECISIONS)}"
        )
