"""Arrays with fixed addresses, which ONNX Runtime reads and writes in place."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interface import BackendError


class HostBuffer:
    """An array with a fixed address, filled with zeros."""

    def __init__(
        self, shape: tuple[int, ...], dtype: type[np.generic], least_rows: int = 1
    ) -> None:
        rows, *inner = shape
        self._least_rows = least_rows
        self._memory = _zeros((max(rows, least_rows), *inner), dtype)
        self.array = self._memory[:rows]
        """The array itself, not a copy."""

    @classmethod
    def holding(cls, array: NDArray[Any]) -> HostBuffer:
        """Return a buffer whose memory is an array that exists."""
        buffer = cls.__new__(cls)
        buffer._least_rows, buffer._memory, buffer.array = 1, array, array
        return buffer

    def write(self, values: NDArray[Any]) -> None:
        """Set all values."""
        self.array[...] = values

    def pad(self, value: int) -> None:
        """Set all values of the rows that are bound but are not the array's."""
        self._memory[len(self.array) : self._least_rows] = value

    def put(self, row: int, values: NDArray[Any]) -> None:
        """Set one row; if `values` is smaller, the rest of the row is unchanged."""
        part = [slice(row, row + 1), *(slice(0, size) for size in values.shape)]
        self.array[tuple(part)] = values

    def move(self, row: int, to: int, begin: int, end: int) -> None:
        """Copy positions `begin` to `end` in axis 1 of a row to another row."""
        self.array[to, :, begin:end] = self.array[row, :, begin:end]

    def room_for(self, shape: tuple[int, ...]) -> NDArray[Any] | None:
        """Allocate zeros for another shape; None if the present memory suffices."""
        rows, *inner = shape
        room = len(self._memory)
        if inner == list(self._memory.shape[1:]) and rows <= room:
            return None
        return _zeros((2 * rows if rows > room else room, *inner), self.array.dtype.type)

    def resize(
        self, shape: tuple[int, ...], room: NDArray[Any] | None, written: int | None = None
    ) -> bool:
        """Change the shape; return whether the address has changed.

        Values within both shapes are kept. New values in axes other than the batch are zero.

        Args:
            written: number of positions, in axis 2, to keep; None: all
        """
        old, rows = self.array, shape[0]
        if room is None:
            self.array = self._memory[:rows]
            return False
        self._memory, self.array = room, room[:rows]
        common = [slice(0, min(pair)) for pair in zip(shape, old.shape, strict=True)]
        if written is not None:
            common[2] = slice(0, written)
        self.array[tuple(common)] = old[tuple(common)]
        return True

    def bind(self, bind: Callable[..., None], name: str, rows: slice | None = None) -> None:
        """Bind rows of the array, or all and those that pad it, to an input or output.

        Args:
            bind: method of an `IOBinding`, `bind_input` or `bind_output`
        """
        padded = self._memory[: max(len(self.array), self._least_rows)]
        a = padded if rows is None else self.array[rows]
        bind(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)


MAPPED = 2**16
"""Minimum size in bytes of memory-mapped arrays.

The allocator writes zeros to reused memory, which is redundant for a batch that joins another."""


def _zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Allocate zeros; a large array occupies only the memory pages that are written."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        if size < MAPPED:
            return np.zeros(shape, dtype)
        return np.frombuffer(_mapped(size), dtype).reshape(shape)
    except (MemoryError, ValueError, OSError, OverflowError) as error:  # beyond the address space
        raise BackendError(
            f"no memory for an array of {np.dtype(dtype)} {list(shape)}: decode fewer sources "
            "at once, or set fewer new tokens"
        ) from error


def _mapped(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
