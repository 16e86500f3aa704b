"""Graphs whose weights are mapped from their file into memory, once for the whole process.

Pages are read when they are needed and are shared by all that read them: graphs, sessions of ONNX
Runtime and models of PyTorch. The system may drop them at any time, since it can read them again.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

_maps: weakref.WeakValueDictionary[tuple[int, ...], np.memmap[Any, Any]] = (
    weakref.WeakValueDictionary()
)
"""Mapped files, by what tells a file from one that replaced it."""


def load_graph(path: Path) -> ir.Model:
    """Load a graph. Its external weights are mapped; those of less than a byte are not."""
    model = ir.load(path)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
                value.const_value = _mapped(tensor)
    return model


def place_of(array: NDArray[Any]) -> tuple[Path, int] | None:
    """Find the file and the offset that an array is mapped from; None if it is in no file."""
    if not array.flags.c_contiguous or not array.nbytes:
        return None
    address = array.__array_interface__["data"][0]
    for mapped in list(_maps.values()):
        offset = address - mapped.__array_interface__["data"][0]
        if offset >= 0 and offset + array.nbytes <= mapped.nbytes:
            return Path(str(mapped.filename)), offset
    return None


def _mapped(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    shape = tensor.shape.numpy()
    length = tensor.nbytes
    if not length:
        return tensor
    first = tensor.offset or 0
    numbers = _file(Path(tensor.path))[first : first + length].view(tensor.dtype.numpy())
    return ir.Tensor(
        np.asarray(numbers).reshape(shape), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name
    )


def _file(path: Path) -> np.memmap[Any, Any]:
    """Map a file. What is written into the memory stays there and does not reach the file."""
    status = path.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    mapped = _maps.get(key)
    if mapped is None:
        mapped = _maps[key] = np.memmap(path.absolute(), np.uint8, "c")
    return mapped
