"""Memory of a batch on the host: allocated once, bound by address, compacted in place.

A buffer's first axis is the batch. Rows that remain move to the front, and the buffer becomes a
prefix of the allocation: same address, smaller shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ...errors import BackendError


class HostBuffer:
    """An array with a fixed address, filled with zeros.

    Raises:
        BackendError: there is no memory for it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        try:
            self._array: NDArray[Any] = np.zeros(shape, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
            raise BackendError(
                f"no memory for an array of {np.dtype(dtype)} {list(shape)}: decode fewer sources "
                "at once, or set fewer new tokens"
            ) from error

    def write(self, values: NDArray[Any]) -> None:
        self._array[...] = values

    def read(self) -> NDArray[Any]:
        """The array itself, not a copy."""
        return self._array

    def keep(self, rows: NDArray[np.intp], used: int | None = None) -> None:
        """Keep only these rows (strictly ascending indices).

        Args:
            used: contents of axis 2 from this index on need not move: they are zeros, or are
                overwritten before they are read
        """
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
