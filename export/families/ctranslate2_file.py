"""CTranslate2's `model.bin`: named arrays in one file, little-endian, of versions 1 to 6.

    u32 version; from 2 on: string specification, u32 revision of it
    u32 number of variables; of each: string name, u8 rank, u32 * rank sizes,
        from 4 on: u8 kind of numbers, u32 bytes; before: u8 bytes of a number, u32 numbers; data
    from 3 on: u32 number of aliases; of each: string alias, string name

A string is u16 bytes, the last of which is 0. Quantized weights have their scale beside them: in
`name` is what was rounded of weight * `name_scale`, one for each row (int8) or for all (int16).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.reference_model import CheckpointError

MODEL_FILE = "model.bin"
NEWEST_VERSION = 6
KINDS = (
    torch.float32,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.float16,
    torch.bfloat16,
)
"""By their numbers in the file."""
OLD_KINDS = {4: torch.float32, 2: torch.int16, 1: torch.int8}
"""By the bytes of a number, before version 4."""
INT16_SCALE = 1000.0
"""Of int16 weights without a scale of their own, as files once were."""
AWQ = "weights are quantized to 4 bits (AWQ), which is not supported"


@dataclass(frozen=True)
class ModelFile:
    """Attributes:
    specification: such as "TransformerSpec"; "" before version 2
    revision: of the specification
    weights: float32, dequantized; an alias is the same tensor
    options: single numbers; a flag is 0 or 1
    texts: strings
    """

    version: int
    specification: str
    revision: int
    weights: Mapping[str, Tensor]
    options: Mapping[str, int | float]
    texts: Mapping[str, str]


def read_model_file(path: Path) -> ModelFile:
    """Read all of a file, in memory of about its weights in fp32.

    Raises:
        CheckpointError: there is none, it is of a later version, cut short or damaged, or its
            weights are quantized to 4 bits.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data, path))
    except (OSError, ValueError) as error:  # mmap of an empty file: ValueError
        raise CheckpointError(path, [f"expected a model of CTranslate2: {error}"]) from error


class _Reader:
    """Takes values from the beginning of a file on, never more than it has."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._position = data, path, 0

    def damaged(self, problem: str) -> CheckpointError:
        return CheckpointError(self._path, [problem])

    def bytes(self, size: int, what: str) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise self.damaged(
                f"not a whole model of CTranslate2: {what} needs {size} bytes at "
                f"{self._position}, and the file ends at {len(self._data)}"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def number(self, kind: str, what: str) -> int:
        """An unsigned integer; kind as in `struct`: B, H or I."""
        value: int = struct.unpack("<" + kind, self.bytes(struct.calcsize("<" + kind), what))[0]
        return value

    def string(self, what: str) -> str:
        raw = self.bytes(self.number("H", what), what)
        if not raw.endswith(b"\0"):
            raise self.damaged(f"{what} must end with a zero, found {raw[-8:]!r}")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} must be UTF-8, found {raw[:32]!r}") from error

    def finish(self) -> None:
        if rest := len(self._data) - self._position:
            raise self.damaged(f"{rest} bytes follow where the file should end")


def _read(reader: _Reader) -> ModelFile:
    version = reader.number("I", "the version")
    if not 1 <= version <= NEWEST_VERSION:
        raise reader.damaged(
            f"expected a model of CTranslate2 in version 1 to {NEWEST_VERSION}, found {version}"
        )
    specification, revision = "", 1
    if version >= 2:
        specification = reader.string("the specification")
        revision = reader.number("I", "its revision")
    variables: dict[str, Tensor] = {}
    for _ in range(reader.number("I", "the number of variables")):
        name = reader.string("a variable's name")
        if name in variables:
            raise reader.damaged(f"{name} is there twice")
        variables[name] = _variable(reader, name, version)
    aliases = {}
    if version >= 3:
        for _ in range(reader.number("I", "the number of aliases")):
            alias = reader.string("an alias")
            aliases[alias] = reader.string(f"the variable of the alias {alias}")
    reader.finish()
    strange = sorted(a for a, name in aliases.items() if name not in variables or a in variables)
    if strange:
        raise reader.damaged(f"aliases of nothing, or of two variables: {', '.join(strange)}")
    weights = _weights(variables, reader)
    weights |= {alias: weights[name] for alias, name in aliases.items() if name in weights}
    return ModelFile(
        version=version,
        specification=specification,
        revision=revision,
        weights=weights,
        options={n: v.item() for n, v in variables.items() if _is_option(n, v)},
        texts={n: _text(v) for n, v in variables.items() if _is_text(v)},
    )


def _variable(reader: _Reader, name: str, version: int) -> Tensor:
    sizes = [reader.number("I", name) for _ in range(reader.number("B", name))]
    if version >= 4:
        kind_number = reader.number("B", name)
        kind = KINDS[kind_number] if kind_number < len(KINDS) else None
        size = reader.number("I", name)
    else:
        kind_number = reader.number("B", name)
        kind = OLD_KINDS.get(kind_number)
        size = reader.number("I", name) * kind_number
    if kind is None:
        raise reader.damaged(f"{name} must be of a known kind of numbers, found {kind_number}")
    # Of a wrong size nothing is read, and nothing taken from memory for it.
    if size != math.prod(sizes) * kind.itemsize:
        raise reader.damaged(f"{name} of shape {sizes} in {kind} cannot have {size} bytes")
    return _tensor(reader.bytes(size, name), kind).reshape(sizes)


def _tensor(data: bytes, kind: torch.dtype) -> Tensor:
    # numpy does not know bfloat16.
    read_as = torch.int16 if kind == torch.bfloat16 else kind
    number = torch.empty(0, dtype=read_as).numpy().dtype.newbyteorder("<")
    array: NDArray[np.generic] = np.frombuffer(data, number).astype(number.newbyteorder("="))
    return torch.from_numpy(array).view(kind)


def _is_text(variable: Tensor) -> bool:
    return variable.dtype == torch.int8 and variable.dim() == 1


def _is_option(name: str, variable: Tensor) -> bool:
    return variable.dim() == 0 and not name.endswith(("_scale", "_zero"))


def _text(variable: Tensor) -> str:
    return variable.numpy().tobytes().decode(errors="replace")


def _weights(variables: Mapping[str, Tensor], reader: _Reader) -> dict[str, Tensor]:
    """The arrays in float32; those that are integers divided by their scale."""
    weights = {}
    scales = {name + "_scale" for name in variables} | {name + "_zero" for name in variables}
    problems = []
    for name, value in variables.items():
        if name in scales or _is_option(name, value) or _is_text(value):
            continue
        if value.is_floating_point():
            weights[name] = value.float()
            continue
        scale = variables.get(name + "_scale")
        if value.dtype == torch.int32 or name + "_zero" in variables:
            raise reader.damaged(AWQ)
        if scale is None and value.dtype == torch.int16:
            scale = torch.tensor(INT16_SCALE)
        if scale is None:
            problems.append(f"{name} is quantized and has no {name}_scale")
        elif scale.numel() not in (1, len(value)) or scale.dim() > 1:
            problems.append(
                f"{name}_scale must be one number or {len(value)}, found {list(scale.shape)}"
            )
        elif not scale.is_floating_point() or not (scale.isfinite() & (scale > 0)).all():
            problems.append(f"{name}_scale must be positive and finite")
        else:
            weights[name] = value.float() / scale.float().reshape(-1, *[1] * (value.dim() - 1))
    if problems:
        raise reader.damaged("; ".join(problems))
    return weights
