"""Model files of Marian: `model.npz`, and `.bin` with weights of 8 bits."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import FileError, check_regular
from dragoman.files.text_lines import printable
from dragoman.reference_model import CheckpointError

from .detection import MARIAN_CONFIGURATION as CONFIGURATION
from .detection import MARIAN_VERSION, marian_files

# A `.bin` file (marian-nmt/marian-dev, src/common/binary.cpp) is little-endian:
#
#     u64 1, the version; u64 number of items
#     for each item: u64 bytes of its name, u64 type, u64 number of axes, u64 bytes of its data
#     the names, each with a final zero; then the shapes, i32 for each axis
#     u64 number of bytes to skip; then the data of the items, one after the other
#
# A matrix of type intgemm8 holds round(weight * multiplier). Its multiplier, a float32, follows the
# integers. The integers are those of the transposed matrix, except for embeddings; the shape is
# that of the matrix itself. Data may be longer than the item: what follows has no meaning.
#
# Both kinds of file hold the configuration as an item, `special:model.yml`.

TYPES: Mapping[int, type[np.generic]] = {
    0x101: np.int8,
    0x402: np.float16,
    0x404: np.float32,
    0x408: np.float64,
}
"""Types of items that are stored as they are."""
ROUNDED: Mapping[int, type[np.generic]] = {
    **dict.fromkeys((0x4101, 0x10001, 0x3101), np.int8),
    **dict.fromkeys((0x4102, 0x10002, 0x3102), np.int16),
}
"""Types of intgemm, in the forks of Firefox and of marian-nmt, and in an older version."""
MULTIPLIERS = "_QuantMultA"
"""Names of the factors with which Marian rounds activations. Dragoman calibrates its own."""
MOST_ITEMS, MOST_AXES, LONGEST_NAME = 100_000, 8, 4096
MOST_CONFIGURATION = 2**20
"""Bytes of the configuration."""
MOST_GROWTH = 20
"""How many times as large a compressed file may become. Marian does not compress."""


@dataclass(frozen=True)
class MarianFile:
    """The contents of a model file."""

    path: Path
    options: Mapping[str, Any]
    """Texts, and lists of texts, by the keys of `special:model.yml`."""
    weights: dict[str, Tensor]
    """Float32, dequantized, in Marian's orientation: [inputs, outputs]."""


def read_marian_file(directory: Path) -> MarianFile:
    """Read the model file of a directory."""
    found = marian_files(directory)
    if len(found) != 1:
        names = ", ".join(printable(path.name) for path in found)
        raise DragomanError(f"{directory}: expected one model file of Marian, found {names}")
    (path,) = found
    read = _read_npz if path.suffix == ".npz" else _read_bin
    try:
        check_regular(path)
        items = read(path)
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    if CONFIGURATION not in items:
        raise CheckpointError(path, [f"expected an item {CONFIGURATION}, found none"])
    options = _options(path, items.pop(CONFIGURATION).tobytes())
    weights = {
        name: torch.from_numpy(values.astype(np.float32))
        for name, values in items.items()
        if not name.endswith(MULTIPLIERS)
    }
    return MarianFile(path, options, weights)


def _options(path: Path, data: bytes) -> Mapping[str, Any]:
    """Read the configuration; numbers and truth values stay texts."""
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise CheckpointError(
            path, [f"the package pyyaml cannot be imported ({error}): pip install pyyaml"]
        ) from error
    try:
        if len(data) > MOST_CONFIGURATION:
            raise ValueError(f"more than {MOST_CONFIGURATION} bytes")
        text = data.partition(b"\0")[0].decode()
        # Marian writes no aliases, and a few of them may stand for millions of values.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.BaseLoader)):
            raise ValueError("expected no aliases")
        values = yaml.load(text, Loader=yaml.BaseLoader)
    except (ValueError, OverflowError, yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        raise CheckpointError(path, [f"{CONFIGURATION}: not YAML: {problem}"]) from error
    if not isinstance(values, dict):
        raise CheckpointError(path, [f"{CONFIGURATION}: expected keys and values"])
    # As YAML has it, these are no values.
    return {name: value for name, value in values.items() if value not in ("~", "null")}


Items = dict[str, NDArray[Any]]


def _read_npz(path: Path) -> Items:
    items = Items()
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > MOST_GROWTH * path.stat().st_size + MOST_CONFIGURATION:
                raise ValueError(f"{size} bytes when it is unpacked")
            for member in members:
                if not member.filename.endswith(".npy"):
                    raise ValueError(f"expected arrays, found {printable(member.filename)}")
                items[member.filename.removesuffix(".npy")] = _array(archive.read(member))
    except Exception as error:  # the libraries raise many types
        problem = " ".join(str(error).split())[:200]
        raise CheckpointError(path, [f"expected a model.npz of Marian: {problem}"]) from error
    return items


def _array(data: bytes) -> NDArray[Any]:
    """Read an array in NumPy's format, whose header must agree with its size."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, is_fortran, kind = read[version](stream)
    if kind.kind not in "fiu":
        raise ValueError(f"expected numbers, found {kind}")
    size = math.prod(shape) * kind.itemsize
    if size != len(data) - stream.tell():
        raise ValueError(f"an array of shape {shown(list(shape))} needs {size} bytes")
    numbers = np.frombuffer(data, kind, offset=stream.tell())
    return numbers.reshape(shape, order="F" if is_fortran else "C")


class _Item(NamedTuple):
    name: str
    type: int
    shape: tuple[int, ...]
    data: memoryview


def _read_bin(path: Path) -> Items:
    items = Items()
    for item in _items(path, memoryview(path.read_bytes())):
        if item.name in items:
            raise CheckpointError(path, [f"{printable(item.name)} is stored twice"])
        items[item.name] = _numbers(path, item)
    return items


def _items(path: Path, data: memoryview) -> Iterator[_Item]:
    position = 0

    def take(size: int, what: str) -> memoryview:
        nonlocal position
        if size > len(data) - position:
            raise CheckpointError(
                path,
                [
                    f"not a complete file of Marian: {what} needs {size} bytes at {position}, and "
                    f"the file ends at {len(data)}"
                ],
            )
        position += size
        return data[position - size : position]

    def numbers(count: int, code: str, what: str) -> tuple[int, ...]:
        form = f"<{count}{code}"
        return struct.unpack(form, take(struct.calcsize(form), what))

    version, count = numbers(2, "Q", "the header")
    if version != MARIAN_VERSION or count > MOST_ITEMS:
        raise CheckpointError(
            path,
            [
                f"expected a file of Marian, version {MARIAN_VERSION} with at most {MOST_ITEMS} "
                f"items, found version {version} with {count}"
            ],
        )
    heads = [numbers(4, "Q", "the header of an item") for _ in range(count)]
    names = [bytes(take(head[0], "a name")).removesuffix(b"\0") for head in heads]
    shapes = []
    for head in heads:
        if head[2] > MOST_AXES or head[0] > LONGEST_NAME:
            raise CheckpointError(path, ["not a file of Marian: an item has too long a header"])
        shapes.append(numbers(head[2], "i", "a shape"))
    take(numbers(1, "Q", "the offset of the data")[0], "what precedes the data")
    for name, head, shape in zip(names, heads, shapes, strict=True):
        shown_name = name.decode(errors="replace")
        yield _Item(shown_name, head[1], shape, take(head[3], printable(shown_name)))


def _numbers(path: Path, item: _Item) -> NDArray[Any]:
    name, shape = printable(item.name), item.shape
    element = TYPES.get(item.type) or ROUNDED.get(item.type)
    if element is None:
        raise CheckpointError(
            path,
            [
                f"{name}: expected float32, or integers of intgemm in their general order, found "
                f"type {item.type:#x}, which only some processors read"
            ],
        )
    kind = np.dtype(element).newbyteorder("<")
    size = math.prod(shape) * kind.itemsize
    needed = size + (4 if item.type in ROUNDED else 0)
    if min(shape, default=1) < 1 or needed > len(item.data):
        raise CheckpointError(
            path,
            [f"{name} of shape {shown(list(shape))} needs {needed} bytes, found {len(item.data)}"],
        )
    stored = np.frombuffer(item.data[:size], kind)
    if item.type not in ROUNDED:
        return stored.reshape(shape).copy()
    (multiplier,) = struct.unpack("<f", item.data[size : size + 4])
    if not 0 < multiplier < math.inf:
        raise CheckpointError(
            path, [f"{name}: expected a positive multiplier, found {multiplier:g}"]
        )
    with np.errstate(over="ignore"):  # what is not finite is refused with all weights
        weights = stored.astype(np.float32) / np.float32(multiplier)
    if "Wemb" in item.name or len(shape) != 2:
        return weights.reshape(shape)
    return np.ascontiguousarray(weights.reshape(shape[::-1]).T)
