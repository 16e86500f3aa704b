"""Number formats of tensors on the device, and their counterparts in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.contract import DataType
from .device import Bytes

SIZES: dict[DataType, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "bool": 1,
}


def size_of(dtype: DataType, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return SIZES[dtype] * math.prod(shape)


def as_numbers(memory: Bytes, dtype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    """A copy of the tensor at the beginning of the memory; bfloat16, which NumPy lacks, becomes
    float32.
    """
    raw = memory[: size_of(dtype, shape)]
    if dtype == "bfloat16":
        wide = raw.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    return raw.view(np.dtype(dtype)).reshape(shape).copy()
