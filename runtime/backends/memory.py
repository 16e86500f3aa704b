"""Memory of a batch: allocated once, bound by address, compacted in place on the host.

A buffer's first axis is the batch. Rows that stay move to the front, and the buffer is then the
prefix of what was allocated: same address, smaller shape.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray


class Buffer(Protocol):
    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        """Allocate, filled with zeros."""

    def write(self, values: NDArray[Any]) -> None: ...

    def read(self) -> NDArray[Any]:
        """The values; may alias the buffer."""

    def keep(self, rows: NDArray[np.intp], used: int | None = None) -> None:
        """Keep these rows only (strictly ascending). With `used`, the contents of axis 2 from that
        index on need not move: they are zeros or will be overwritten before they are read."""

    def bind_input(self, binding: onnxruntime.IOBinding, name: str) -> None: ...

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None: ...


class HostBuffer:
    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self._array: NDArray[Any] = np.zeros(shape, dtype)

    def write(self, values: NDArray[Any]) -> None:
        self._array[...] = values

    def read(self) -> NDArray[Any]:
        return self._array

    def keep(self, rows: NDArray[np.intp], used: int | None = None) -> None:
        part = self._array if used is None else self._array[:, :, :used]
        for to, row in enumerate(rows):
            if to != row:
                part[to] = part[row]
        self._array = self._array[: len(rows)]

    def bind_input(self, binding: onnxruntime.IOBinding, name: str) -> None:
        a = self._array
        binding.bind_input(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        a = self._array
        binding.bind_output(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)


class DeviceBuffer:
    """On a CUDA device. Rows are compacted through the host, into a new allocation."""

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), "cuda", 0)

    def write(self, values: NDArray[Any]) -> None:
        shape = tuple(self._value.shape())
        self._value.update_inplace(
            np.ascontiguousarray(np.broadcast_to(values, shape), self._dtype)
        )

    def read(self) -> NDArray[Any]:
        values: NDArray[Any] = self._value.numpy()
        return values

    def keep(self, rows: NDArray[np.intp], used: int | None = None) -> None:
        kept = np.ascontiguousarray(self.read()[rows])
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy(kept, "cuda", 0)

    def bind_input(self, binding: onnxruntime.IOBinding, name: str) -> None:
        binding.bind_ortvalue_input(name, self._value)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        binding.bind_ortvalue_output(name, self._value)
