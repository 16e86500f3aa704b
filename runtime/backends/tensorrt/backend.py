"""TensorRT-RTX or TensorRT, running a bundle's engines. See `interface.Backend`."""

from __future__ import annotations

from ...bundle import Bundle
from ...engines import Engines
from ..cuda import Device
from ..cuda.backend import DeviceBackend
from ..cuda.layout import power_of_two, row_bytes
from ..interface import Limits
from .contexts import KernelCache
from .engine import Engine, load_engine
from .packages import Package
from .sizes import ProfileRounding, sizes_for
from .workplace import EngineName, EngineWorkplace

ROOM = 0.9
"""The share of free memory that a batch may take."""


class TensorRTBackend(DeviceBackend):
    """Two engines on one device. Every batch has a workplace, which is used again after it."""

    def __init__(self, bundle: Bundle, engines: Engines, package: Package, device: Device) -> None:
        super().__init__(bundle.manifest, device, ProfileRounding(engines))
        self._built, self._package = engines, package
        self._engines: dict[EngineName, Engine] = {
            "encoder": load_engine(package, bundle, self.manifest.encoder.file),
            "decoder": load_engine(package, bundle, self.manifest.decoder.file),
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
        """A power of two, for batches are rounded up to one; at least 1, of which starting it tells
        whether it fits."""
        sizes = sizes_for(self._built.profiles, 1, source)
        each = row_bytes(self.manifest, sizes) + 8 * self.manifest.model.max_target_positions
        with self._lock:
            idle = max((place.arena.size for place in self._free), default=-self._scratch)
        room = int(ROOM * (self._device.free_memory() + idle)) // each
        most = max(1, min(room, max(p.batch.largest for p in self._built.profiles)))
        return power_of_two(most + 1) // 2

    def close(self) -> None:
        self._cache.save()
        self._engines = {}
        super().close()

    def _new_workplace(self) -> EngineWorkplace:
        place = EngineWorkplace(
            *(self._device, self._preparing, self.manifest, self._package),
            *(self._engines, self._cache, self._scratch),
        )
        place.widest = max(p.batch.largest for p in self._built.profiles)
        return place
