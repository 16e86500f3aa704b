"""What backends on a GPU share: workplaces that are used again, batch after batch."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ...manifest import Manifest
from ..errors import BackendError
from ..interface import Limits
from .device import Device
from .layout import Rounding
from .state import DeviceState
from .workplace import Workplace


class DeviceBackend(ABC):
    """See `interface.Backend`.

    Args:
        rounding: what sizes batches take
    """

    def __init__(self, manifest: Manifest, device: Device, rounding: Rounding) -> None:
        self.manifest = manifest
        self._device, self._rounding = device, rounding
        self._preparing = threading.RLock()
        self._free: list[Workplace] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    @abstractmethod
    def limits(self) -> Limits: ...

    @abstractmethod
    def rows_that_fit(self, source: int) -> int | None: ...

    @abstractmethod
    def _new_workplace(self) -> Workplace: ...

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> DeviceState:
        place = self._take()
        try:
            return DeviceState(
                *(place, self.manifest, self._rounding, source, source_mask, prompt, capacity),
                self._give_back,
            )
        except BaseException:
            self._close_failed(place)
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
        """One that is idle, best the one that this thread had before: ONNX Runtime captures a graph
        for each thread."""
        thread = threading.get_ident()
        with self._lock:
            if self._closed:
                raise BackendError("the model was closed")
            if self._free:
                self._free.sort(key=lambda place: place.thread == thread)
                place = self._free.pop()
                place.thread = thread
                return place
        return self._new_workplace()

    def _give_back(self, place: Workplace) -> None:
        if place.failed:
            self._close_failed(place)
            return
        with self._lock:
            if not self._closed:
                self._free.append(place)
                return
        place.close()

    def _close_failed(self, place: Workplace) -> None:
        """So that a smaller batch finds the memory that this one did not."""
        with contextlib.suppress(DragomanError):
            place.close()
            self._close_idle()
