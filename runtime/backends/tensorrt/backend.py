"""TensorRT-RTX or TensorRT, running a bundle's engines. See `interface.Backend`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle import Bundle
from ...engines import Engines
from ..cuda import Device
from ..errors import BackendError
from ..interface import Limits
from .contexts import KernelCache
from .engine import load_engine
from .packages import Package
from .state import EngineState
from .workplace import EngineName, Workplace


class TensorRTBackend:
    """Two engines on one device. Every batch has a workplace, which is used again after it."""

    def __init__(self, bundle: Bundle, engines: Engines, package: Package, device: Device) -> None:
        self.manifest = bundle.manifest
        self._built = engines
        self._package, self._device = package, device
        self._engines: dict[EngineName, Any] = {
            "encoder": load_engine(package, bundle, self.manifest.encoder.file),
            "decoder": load_engine(package, bundle, self.manifest.decoder.file),
        }
        self._scratch = max(int(e.device_memory_size_v2) for e in self._engines.values())
        self._cache = KernelCache(package)
        self._free: list[Workplace] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def limits(self) -> Limits:
        profiles = self._built.profiles
        return Limits(
            rows=max(p.batch.largest for p in profiles),
            source=max(p.source.largest for p in profiles),
            capacity=self._built.capacity,
        )

    def start(
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_], capacity: int
    ) -> EngineState:
        if capacity > self._built.capacity:
            raise BackendError(
                f"the engines hold {self._built.capacity} target positions: found {capacity}"
            )
        place = self._take()
        try:
            return EngineState(
                place, self.manifest, self._built, source, source_mask, self._give_back
            )
        except BackendError:
            place.close()  # so that a smaller batch finds the memory that this one did not
            raise

    def encode(
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        parts = [self._encode(source[rows], source_mask[rows]) for rows in self._batches(source)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def score(
        self,
        source: NDArray[np.int64],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        parts = []
        for rows in self._batches(source):
            state = self.start(source[rows], source_mask[rows], target.shape[1])
            try:
                steps = [state.logits_after(tokens) for tokens in target[rows].T]
            finally:
                state.close()
            parts.append(np.stack(steps, axis=1))
        return np.concatenate(parts)

    def close(self) -> None:
        """Free everything that is not in use; what is, when it is given back."""
        with self._lock:
            self._closed = True
            places, self._free = self._free, []
        for place in places:
            place.close()
        self._cache.save()

    def _encode(
        self, source: NDArray[np.int64], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        state = self.start(source, source_mask, 1)
        try:
            return state.encoded(len(source), source.shape[1])
        finally:
            state.close()

    def _batches(self, source: NDArray[np.int64]) -> list[slice]:
        largest = self.limits.rows or len(source)
        return [slice(i, i + largest) for i in range(0, len(source), largest)]

    def _take(self) -> Workplace:
        with self._lock:
            if self._closed:
                raise BackendError("the model was closed")
            if self._free:
                return self._free.pop()
        return Workplace(self._device, self._package, self._engines, self._cache, self._scratch)

    def _give_back(self, place: Workplace) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(place)
                return
        place.close()
