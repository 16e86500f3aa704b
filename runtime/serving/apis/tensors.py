"""Tensors of the Open Inference Protocol v2, in JSON and in its binary extension."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

DTYPES: dict[str, Any] = {
    "BOOL": np.dtype(np.bool_),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
MOST_DIMENSIONS = 8


class TensorError(DragomanError):
    """A tensor is not as it must be."""


@dataclass(frozen=True)
class Tensor:
    """
    Attributes:
        values: of BYTES, an array of bytes
    """

    name: str
    datatype: str
    values: NDArray[Any]


def read_tensor(data: dict[str, Any], binary: memoryview) -> tuple[Tensor, memoryview]:
    """A tensor of a request, and what is left of the binary part.

    Raises:
        TensorError: a field is missing or does not match the others.
    """
    name, datatype, shape = data.get("name"), data.get("datatype"), data.get("shape")
    if not isinstance(name, str):
        raise TensorError("inputs: expected a name of each")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise TensorError(
            f"{name}: expected a datatype of {', '.join(DTYPES)}, found {datatype!r:.40}"
        )
    if not _is_shape(shape):
        raise TensorError(
            f"{name}: expected a shape of at most {MOST_DIMENSIONS} sizes, found {shape!r:.80}"
        )
    parameters = data.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return Tensor(name, datatype, _from_json(name, datatype, shape, data.get("data"))), binary
    if type(size) is not int or not 0 <= size <= len(binary):
        raise TensorError(
            f"{name}: expected {size!r:.40} bytes of binary data, found {len(binary)}"
        )
    values = _from_binary(name, datatype, shape, binary[:size])
    return Tensor(name, datatype, values), binary[size:]


def write_tensor(tensor: Tensor, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """A tensor of an answer, and its binary part."""
    head: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.values.shape),
    }
    if not binary:
        flat = tensor.values.ravel().tolist()
        data = [v.decode() for v in flat] if tensor.datatype == "BYTES" else flat
        return head | {"data": data}, b""
    if tensor.datatype == "BYTES":
        content = b"".join(
            struct.pack("<I", len(value)) + value for value in tensor.values.ravel().tolist()
        )
    else:
        content = np.ascontiguousarray(tensor.values, DTYPES[tensor.datatype]).tobytes()
    return head | {"parameters": {"binary_data_size": len(content)}}, content


def _is_shape(shape: Any) -> TypeGuard[list[int]]:
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        return False
    return all(type(size) is int and size >= 0 for size in shape)


def _from_json(name: str, datatype: str, shape: list[int], data: Any) -> NDArray[Any]:
    if not isinstance(data, list):
        raise TensorError(f"{name}: expected data, a list, found {type(data).__name__}")
    flat = _flat(data)
    if datatype == "BYTES":
        if not all(isinstance(value, str) for value in flat):
            raise TensorError(f"{name}: expected texts")
        values = np.empty(len(flat), object)
        values[:] = [value.encode() for value in flat]
    else:
        try:
            with np.errstate(over="raise"):
                values = np.array(flat, DTYPES[datatype])
        except (ValueError, TypeError, ArithmeticError) as error:
            raise TensorError(f"{name}: expected numbers of {datatype}: {error}") from error
    return _shaped(name, values, shape)


def _flat(data: list[Any]) -> list[Any]:
    """Data may be nested or not."""
    while data and isinstance(data[0], list):
        if not all(isinstance(inner, list) for inner in data):
            raise TensorError("data: expected lists of one depth")
        data = [value for inner in data for value in inner]
    return data


def _from_binary(name: str, datatype: str, shape: list[int], data: memoryview) -> NDArray[Any]:
    if datatype != "BYTES":
        dtype = DTYPES[datatype]
        if len(data) % dtype.itemsize:
            raise TensorError(f"{name}: expected whole numbers of {datatype} in {len(data)} bytes")
        return _shaped(name, np.frombuffer(data, dtype), shape)
    texts: list[bytes] = []
    place = 0
    while place < len(data):
        if place + 4 > len(data):
            raise TensorError(f"{name}: expected a length of 4 bytes at byte {place}")
        (size,) = struct.unpack_from("<I", data, place)
        place += 4
        if place + size > len(data):
            raise TensorError(f"{name}: expected {size} bytes at byte {place}, found fewer")
        texts.append(bytes(data[place : place + size]))
        place += size
    values = np.empty(len(texts), object)
    values[:] = texts
    return _shaped(name, values, shape)


def _shaped(name: str, values: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    if values.size != math.prod(shape):
        raise TensorError(
            f"{name}: expected as many values as shape {shape!r:.80} has, found {values.size}"
        )
    try:
        return values.reshape(shape)
    except ValueError as error:  # no values, of a size that no array has
        raise TensorError(f"{name}: expected a shape, found {shape!r:.80}: {error}") from error
