"""TensorRT-RTX or TensorRT, running a bundle's engines. See `interface.Backend`."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ...bundle import Bundle
from ...engines import Engines
from ..cuda import Device
from ..errors import BackendError
from ..interface import Limits
from .contexts import KernelCache
from .engine import Engine, load_engine
from .packages import Package
from .sizes import sizes_for
from .state import EngineState, row_bytes
from .workplace import EngineName, Workplace

ROOM = 0.9
"""The share of free memory that a batch may take."""


class TensorRTBackend:
    """Two engines on one device. Every batch has a workplace, which is used again after it."""

    def __init__(self, bundle: Bundle, engines: Engines, package: Package, device: Device) -> None:
        self.manifest = bundle.manifest
        self._built = engines
        self._package, self._device = package, device
        self._engines: dict[EngineName, Engine] = {
            "encoder": load_engine(package, bundle, self.manifest.encoder.file),
            "decoder": load_engine(package, bundle, self.manifest.decoder.file),
        }
        self._scratch = max(engine.memory for engine in self._engines.values())
        self._cache = KernelCache(package)
        self._free: list[Workplace] = []
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        self._closed = False

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
        each = row_bytes(self.manifest, sizes) + 8 * self._built.capacity
        with self._lock:
            idle = max((place.arena.size for place in self._free), default=-self._scratch)
        room = int(ROOM * (self._device.free_memory() + idle)) // each
        most = min(room, max(p.batch.largest for p in self._built.profiles))
        return 1 << max(0, most.bit_length() - 1)

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> EngineState:
        if capacity > self._built.capacity:
            raise BackendError(
                f"the engines hold {self._built.capacity} target positions: found {capacity}"
            )
        place = self._take()
        try:
            return EngineState(
                *(place, self.manifest, self._built, source, source_mask, prompt, capacity),
                self._give_back,
            )
        except BaseException:
            # So that a smaller batch finds the memory that this one did not.
            with contextlib.suppress(DragomanError):
                place.close()
                self._close_idle()
            raise

    def encode(
        self, source: NDArray[Any], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        parts = [self._encode(source[rows], source_mask[rows]) for rows in self._batches(source)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def score(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        target: NDArray[np.int64],
    ) -> NDArray[Any]:
        parts = []
        for rows in self._batches(source):
            state = self.start(source[rows], source_mask[rows], target[rows, :1], target.shape[1])
            try:
                steps = [state.logits_after(tokens) for tokens in target[rows].T]
            finally:
                state.close()
            parts.append(np.stack(steps, axis=1))
        return np.concatenate(parts)

    def close(self) -> None:
        """Free everything that is not in use; what is, when it is given back."""
        self._closed = True
        self._cache.save()
        self._engines = {}
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            places, self._free = self._free, []
        with contextlib.ExitStack() as stack:  # each is closed, whatever becomes of the others
            for place in places:
                stack.callback(place.close)

    def _encode(
        self, source: NDArray[Any], source_mask: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        state = self.start(source, source_mask, np.zeros((len(source), 1), np.int64), 1)
        try:
            return state.encoded(*source_mask.shape)
        finally:
            state.close()

    def _batches(self, source: NDArray[Any]) -> list[slice]:
        largest = self.limits.rows or len(source)
        return [slice(i, i + largest) for i in range(0, len(source), largest)]

    def _take(self) -> Workplace:
        with self._lock:
            if self._closed:
                raise BackendError("the model was closed")
            if self._free:
                return self._free.pop()
        return Workplace(
            self._device,
            self._package,
            self._engines,
            self._cache,
            self._scratch,
            self._preparing,
        )

    def _give_back(self, place: Workplace) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(place)
                return
        place.close()
