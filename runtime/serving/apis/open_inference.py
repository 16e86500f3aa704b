"""Tensors of the Open Inference Protocol v2, which `dragoman serve` and Triton share.

A decoding model takes `text` [N] (BYTES), or `audio` (BYTES: files), and returns `text`, `score`,
`log_probability` and `finish_reason`, each [N]. An encoder-only model takes `text` and returns
`embedding` [N, D] (FP32) or, with another head, `result` [N] (BYTES: JSON).
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, listed, nearest, shown
from dragoman.settings.head import Head

from ...arguments import ENCODER_METHODS
from ...decoding.results import Result
from ...format.manifest import Manifest
from ..engine.encoder_engine import ABILITIES
from .bodies import MOST_SOURCES, BodyError, check_results

PROTOCOL_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
)
"""Parameters of the protocol, which are not options of a model."""
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
    """A tensor is malformed or not an input of the model."""


@dataclass(frozen=True)
class TensorSpec:
    """The specification of an input or output of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """Sizes; -1: any size."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a request or response."""

    name: str
    datatype: str
    values: NDArray[Any]
    """Array of the elements; for BYTES, of bytes objects."""


def input_spec(manifest: Manifest) -> TensorSpec:
    """Return the input of a model."""
    return TensorSpec("text" if manifest.audio is None else "audio", "BYTES", (-1,))


def output_specs(manifest: Manifest) -> list[TensorSpec]:
    """Return the outputs of a model."""
    if manifest.head is None:
        return [
            TensorSpec("text", "BYTES", (-1,)),
            TensorSpec("score", "FP32", (-1,)),
            TensorSpec("log_probability", "FP32", (-1,)),
            TensorSpec("finish_reason", "BYTES", (-1,)),
        ]
    if manifest.head.task == "embedding":
        return [TensorSpec("embedding", "FP32", (-1, manifest.head.outputs))]
    return [TensorSpec("result", "BYTES", (-1,))]


def texts_of(tensors: Mapping[str, Tensor]) -> list[Any]:
    """Read texts [N] or [N, 1], or pairs of texts [N, 2]."""
    tensor = _only_input(tensors, "text")
    shape = tensor.values.shape
    if not 1 <= len(shape) <= 2 or shape[1:] not in ((), (1,), (2,)):
        raise TensorError(f"text: expected shape [N], [N, 1] or [N, 2], found {list(shape)}")
    _check_count("text", shape[0])
    rows = tensor.values.reshape(shape[0], *(shape[1:] or (1,)))
    try:
        texts = [[value.decode() for value in row] for row in rows.tolist()]
    except UnicodeDecodeError as error:
        raise TensorError(f"text: expected UTF-8: {error}") from error
    return [row[0] if len(row) == 1 else tuple(row) for row in texts]


def files_of(tensors: Mapping[str, Tensor]) -> list[bytes]:
    """Read audio files."""
    values = _only_input(tensors, "audio").values
    _check_count("audio", values.size)
    return values.ravel().tolist()


def decoder_tensors(results: Sequence[Result]) -> list[Tensor]:
    """Convert the results of a model that decodes.

    Raises:
        RejectedError: names the first source that could not be decoded.
    """
    check_results(results)
    texts = [" ".join(map(str, r.tokens)) if r.text is None else r.text for r in results]
    return [
        bytes_tensor("text", texts),
        _fp32_tensor("score", [r.score for r in results]),
        _fp32_tensor("log_probability", [r.log_probability for r in results]),
        bytes_tensor("finish_reason", [r.finish_reason for r in results]),
    ]


def encoder_call(head: Head, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the method of `EncoderFrontEnd` for a head, and its arguments."""
    accepted = ("truncate", "split_special_tokens")
    unknown = parameters.keys() - set(accepted)
    if unknown:
        raise BodyError(f"unknown parameters: {listed(unknown)}{nearest(unknown, accepted)}")
    _, ability = ENCODER_METHODS[head.task]
    (method,) = [name for name, known in ABILITIES.items() if known == ability]
    for name, value in parameters.items():
        if value is not None and not isinstance(value, bool):
            raise BodyError(f"{name}: expected true or false, found {shown(value)}")
    known = {name: value for name, value in parameters.items() if value is not None}
    defaults = {"fill": {"top": 5}, "answer": {"longest": 15}}.get(method, {})
    return method, {"truncate": False} | known | defaults


def encoder_tensors(head: Head, results: Sequence[Any]) -> list[Tensor]:
    """Convert the results of an encoder-only model.

    Raises:
        RejectedError: names the first text that could not be read.
    """
    check_results(results)
    if head.task == "embedding":
        vectors = np.array([result.vector for result in results], np.float32)
        return [Tensor("embedding", "FP32", vectors.reshape(len(results), head.outputs))]
    texts = [json.dumps(dataclasses.asdict(one), ensure_ascii=False) for one in results]
    return [bytes_tensor("result", texts)]


def bytes_tensor(name: str, texts: Sequence[str]) -> Tensor:
    """Create a BYTES tensor from texts."""
    return Tensor(name, "BYTES", _objects([text.encode() for text in texts]))


def read_tensor(data: dict[str, Any], binary: memoryview) -> tuple[Tensor, memoryview]:
    """Read a tensor of a request, and return it with the rest of the binary data.

    Args:
        binary: binary data that begins with this tensor's

    Raises:
        TensorError: a field is missing or does not match the others.
    """
    name, datatype, shape = data.get("name"), data.get("datatype"), data.get("shape")
    if not isinstance(name, str):
        raise TensorError("inputs: expected a name of each tensor")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise TensorError(
            f"{name}: expected a datatype of {', '.join(DTYPES)}, found {shown(datatype)}"
        )
    if not _is_shape(shape):
        raise TensorError(
            f"{name}: expected a shape of at most {MOST_DIMENSIONS} sizes, none negative, found "
            f"{shown(shape)}"
        )
    parameters = data.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        values = _from_json(name, datatype, data.get("data"))
    elif type(size) is int and 0 <= size <= len(binary):
        values, binary = _from_binary(name, datatype, binary[:size]), binary[size:]
    else:
        raise TensorError(
            f"{name}: expected {shown(size)} bytes of binary data, found {len(binary)}"
        )
    return Tensor(name, datatype, _reshaped(name, values, shape)), binary


def write_tensor(tensor: Tensor, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """Return the JSON and the binary data of a tensor."""
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


def _from_json(name: str, datatype: str, data: Any) -> NDArray[Any]:
    if not isinstance(data, list):
        raise TensorError(f"{name}: expected data, a list, found {type(data).__name__}")
    flat = _flatten(data)
    if datatype == "BYTES":
        if not all(isinstance(value, str) for value in flat):
            raise TensorError(f"{name}: expected strings")
        return _objects([value.encode() for value in flat])
    try:
        with np.errstate(over="raise"):
            return np.array(flat, DTYPES[datatype])
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TensorError(f"{name}: expected numbers of {datatype}: {error}") from error


def _flatten(data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        if not all(isinstance(inner, list) for inner in data):
            raise TensorError("data: expected lists of one depth")
        data = [value for inner in data for value in inner]
    return data


def _from_binary(name: str, datatype: str, data: memoryview) -> NDArray[Any]:
    if datatype != "BYTES":
        dtype = DTYPES[datatype]
        if len(data) % dtype.itemsize:
            raise TensorError(f"{name}: expected whole numbers of {datatype} in {len(data)} bytes")
        return np.frombuffer(data, dtype)
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
    return _objects(texts)


def _objects(texts: Sequence[bytes]) -> NDArray[Any]:
    values: NDArray[Any] = np.empty(len(texts), object)
    values[:] = texts
    return values


def _reshaped(name: str, values: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    if values.size != math.prod(shape):
        raise TensorError(
            f"{name}: expected as many values as shape {shown(shape)} has, found {values.size}"
        )
    try:
        return values.reshape(shape)
    except ValueError as error:  # no values, but sizes too large for an array
        raise TensorError(f"{name}: expected a shape, found {shown(shape)}: {error}") from error


def _fp32_tensor(name: str, numbers: Sequence[float]) -> Tensor:
    """Create an FP32 tensor, clipping numbers."""
    most = np.finfo(np.float32).max
    return Tensor(name, "FP32", np.clip(np.array(numbers), -most, most).astype(np.float32))


def _check_count(name: str, count: int) -> None:
    if count > MOST_SOURCES:
        raise TensorError(f"{name}: expected at most {MOST_SOURCES} of them, found {count}")


def _only_input(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if set(tensors) != {name}:
        raise TensorError(f"inputs: expected {name}, found {listed(tensors) or 'none'}")
    if tensors[name].datatype != "BYTES":
        raise TensorError(f"{name}: expected BYTES, found {tensors[name].datatype}")
    return tensors[name]
