"""Memory of a batch on the host: bound by address, its rows moved in place.

A buffer's first axis is the batch. It is a prefix of an allocation with room for as many rows as
there ever were: when rows leave or join, the address stays.
"""

from __future__ import annotations

import math
import mmap
import sys
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
        self._memory = _zeros(shape, dtype)
        self._array = self._memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def write(self, values: NDArray[Any]) -> None:
        self._array[...] = values

    def read(self) -> NDArray[Any]:
        """The array itself, not a copy."""
        return self._array

    def put(self, row: int, values: NDArray[Any]) -> None:
        """Set one row; where `values` is smaller, in any axis, the rest of the row stays."""
        part = [slice(row, row + 1), *(slice(0, size) for size in values.shape)]
        self._array[tuple(part)] = values

    def move(self, row: int, to: int, begin: int, end: int) -> None:
        """Copy these positions, in axis 1 of a row, from one row to another."""
        self._array[to, :, begin:end] = self._array[row, :, begin:end]

    def room_for(self, shape: tuple[int, ...]) -> NDArray[Any] | None:
        """New memory for another shape, all zeros; None: the present memory has room for it.

        Raises:
            BackendError: there is none.
        """
        rows, *inner = shape
        room = len(self._memory)
        if inner == list(self._memory.shape[1:]) and rows <= room:
            return None
        return _zeros((2 * rows if rows > room else room, *inner), self._array.dtype.type)

    def resize(
        self, shape: tuple[int, ...], room: NDArray[Any] | None, written: int | None = None
    ) -> bool:
        """Change the shape; what lies in both shapes is kept, what is new in axes other than the
        batch is zero.

        Args:
            room: from `room_for`, for the same shape
            written: how many positions, in axis 2, must be kept; None: all

        Returns:
            whether the address has changed
        """
        old, rows = self._array, shape[0]
        if room is None:
            self._array = self._memory[:rows]
            return False
        self._memory, self._array = room, room[:rows]
        common = [slice(0, min(pair)) for pair in zip(shape, old.shape, strict=True)]
        if written is not None:
            common[2] = slice(0, written)
        self._array[tuple(common)] = old[tuple(common)]
        return True

    def bind_input(
        self, binding: onnxruntime.IOBinding, name: str, rows: slice = slice(None)
    ) -> None:
        a = self._array[rows]
        binding.bind_input(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)

    def bind_output(
        self, binding: onnxruntime.IOBinding, name: str, rows: slice = slice(None)
    ) -> None:
        a = self._array[rows]
        binding.bind_output(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)


MAPPED = 2**16
"""Bytes from which on an array is mapped. The allocator would write zeros to memory that it uses
again: of a batch that joins another one, all of it in vain."""


def _zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Large ones take memory, page by page, only where they are written."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        if size < MAPPED:
            return np.zeros(shape, dtype)
        return np.frombuffer(_mapped(size), dtype).reshape(shape)
    except (MemoryError, ValueError, OSError, OverflowError) as error:  # more than can be addressed
        raise BackendError(
            f"no memory for an array of {np.dtype(dtype)} {list(shape)}: decode fewer sources "
            "at once, or set fewer new tokens"
        ) from error


def _mapped(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
