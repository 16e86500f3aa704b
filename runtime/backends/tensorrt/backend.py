"""TensorRT-RTX or TensorRT, running a bundle's engines. See `interface.Backend`."""

from __future__ import annotations

from ...format.bundle import Bundle
from ...format.executables import TensorRTEngines
from ..cuda import Device
from ..cuda.backend import DeviceBackend
from ..cuda.layout import power_of_two, row_bytes
from ..errors import BackendError
from ..interface import Limits
from .compatibility import usable_package
from .contexts import KernelCache
from .loaded_engine import LoadedEngine, load_engine
from .packages import Package
from .sizes import ProfileRounding, sizes_for
from .workspace import EngineWorkspace

ROOM = 0.9
"""The share of free memory that a batch may use."""


class TensorRTBackend(DeviceBackend):
    """The engines of a bundle on one device. Each batch has a workspace, which later ones reuse."""

    def __init__(
        self, bundle: Bundle, engines: TensorRTEngines, package: Package, device: Device
    ) -> None:
        super().__init__(bundle.manifest, device, ProfileRounding(engines))
        self._built, self._package = engines, package
        self._engines: dict[str, LoadedEngine] = {
            name: load_engine(package, bundle, graph.file)
            for name, graph in self.manifest.graphs.items()
        }
        self._scratch = max(engine.memory for engine in self._engines.values())
        self._cache = KernelCache(package)

    @property
    def limits(self) -> Limits:
        profiles = self._built.profiles
        return Limits(
            rows=max(p.batch.largest for p in profiles),
            source=max(p.source.largest for p in profiles),
        )

    def rows_that_fit(self, source: int) -> int:
        """A power of two, because batches are rounded up to one; at least 1: whether a single row
        fits shows when it is started. There is as much room again for others that join them, which
        are started in a workspace of their own.
        """
        sizes = sizes_for(self._built.profiles, 1, source)
        each = row_bytes(self.manifest, sizes) + 8 * self.manifest.model.max_target_positions
        with self._lock:
            idle = sorted(workspace.arena.size for workspace in self._free)[-2:]
        free = self._device.free_memory() + sum(idle) - 2 * self._scratch
        room = int(ROOM * free) // (2 * each)
        most = max(1, min(room, max(p.batch.largest for p in self._built.profiles)))
        return power_of_two(most + 1) // 2

    def close(self) -> None:
        self._cache.save()
        self._engines = {}
        super().close()

    def _new_workspace(self) -> EngineWorkspace:
        workspace = EngineWorkspace(
            *(self._device, self._preparing, self.manifest, self._package),
            *(self._engines, self._cache, self._scratch),
        )
        workspace.widest = max(p.batch.largest for p in self._built.profiles)
        return workspace


def open_backend(bundle: Bundle, threads: int | None) -> TensorRTBackend:
    """
    Args:
        threads: of the processor, which has little to do

    Raises:
        BackendError: there is no GPU, the package is missing or of another version, or the engines
            are not for this GPU.
    """
    from ..cuda.driver import CudaDevice

    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package, _ = usable_package(bundle, engines)
    return TensorRTBackend(bundle, engines, package, CudaDevice())
