"""Files of CTranslate2: `model.bin`, and the vocabularies in the same directory."""

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

from dragoman.files.regular_files import VOCABULARY_BYTES, FileError, check_regular, read_regular
from dragoman.files.strict_json import read_json
from dragoman.reference_model import CheckpointError
from dragoman.reference_model.settings import all_are

# `model.bin` holds named arrays, little-endian, in format versions 1 to 6:
#
#     u32 version
#     since version 2: string specification, u32 revision of the specification
#     u32 number of variables, then for each:
#         string name, u8 rank, u32 size of each axis
#         since version 4: u8 data type, u32 size in bytes; before: u8 bytes per element, u32
#             elements
#         data
#     since version 3: u32 number of aliases, then for each: string alias, string variable
#
# A string is a u16 length in bytes, followed by the bytes, the last of them 0. The scale of a
# quantized weight is a separate variable: `name` holds round(weight * `name_scale`), with one scale
# per row (int8) or per tensor (int16).

NEWEST_VERSION = 6
DATA_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""Data types by their number in the file."""
DATA_TYPES_BY_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}
"""Data types by bytes per element, for files before version 4, which state no type."""
DEFAULT_INT16_SCALE = 1000.0
"""The scale of int16 weights in old files, which store no scale."""
MAX_AXES = 8
"""Maximum number of axes of a variable. Convolutions have 3; PyTorch supports at most 64."""
AWQ = "weights are quantized to 4 bits (AWQ), which is not supported"


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file."""

    version: int
    specification: str
    """Name such as "TransformerSpec"; "" before version 2."""
    revision: int
    """Revision of the specification."""
    weights: Mapping[str, Tensor]
    """Float32, dequantized; an alias shares the tensor of its variable."""
    options: Mapping[str, int | float]
    """Scalars; a flag is 0 or 1."""
    texts: Mapping[str, str]
    """String variables."""


def read_model_file(path: Path) -> ModelFile:
    """Read a whole file, which takes about the memory of the weights in fp32."""
    try:
        check_regular(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data, path))
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    except (OSError, ValueError) as error:  # mmap of an empty file: ValueError
        raise CheckpointError(path, [f"expected a CTranslate2 model file: {error}"]) from error


class _Reader:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._position = data, path, 0

    def damaged(self, problem: str) -> CheckpointError:
        return CheckpointError(self._path, [problem])

    def bytes(self, size: int, what: str) -> bytes:
        """Read the next bytes; `what` names them in errors, here and below."""
        end = self._position + size
        if end > len(self._data):
            raise self.damaged(
                f"not a complete CTranslate2 model file: {what} needs {size} bytes at "
                f"{self._position}, and the file ends at {len(self._data)}"
            )
        data = self._data[self._position : end]
        self._position = end
        return data

    def unsigned(self, code: str, what: str) -> int:
        """Read an unsigned integer with a code of `struct`: B, H or I."""
        value: int = struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code), what))[0]
        return value

    def string(self, what: str) -> str:
        raw = self.bytes(self.unsigned("H", what), what)
        if not raw.endswith(b"\0"):
            raise self.damaged(f"{what} must end with a zero byte, found {raw[-8:]!r}")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} must be UTF-8, found {raw[:32]!r}") from error

    def finish(self) -> None:
        if rest := len(self._data) - self._position:
            raise self.damaged(f"{rest} bytes follow the end of the model")


def _read(reader: _Reader) -> ModelFile:
    version = reader.unsigned("I", "the version")
    if not 1 <= version <= NEWEST_VERSION:
        raise reader.damaged(
            f"expected a CTranslate2 model file of version 1 to {NEWEST_VERSION}, found {version}"
        )
    specification, revision = "", 1
    if version >= 2:
        specification = reader.string("the specification")
        revision = reader.unsigned("I", "its revision")
    variables: dict[str, Tensor] = {}
    for _ in range(reader.unsigned("I", "the number of variables")):
        name = reader.string("a variable's name")
        if name in variables:
            raise reader.damaged(f"variable {name} is stored twice")
        variables[name] = _variable(reader, name, version)
    aliases = {}
    if version >= 3:
        for _ in range(reader.unsigned("I", "the number of aliases")):
            alias = reader.string("an alias")
            aliases[alias] = reader.string(f"the variable of the alias {alias}")
    reader.finish()
    invalid = sorted(a for a, name in aliases.items() if name not in variables or a in variables)
    if invalid:
        raise reader.damaged(
            "expected each alias to be a new name of a variable, found otherwise: "
            + ", ".join(invalid)
        )
    weights = _weights(variables, reader)
    weights |= {alias: weights[name] for alias, name in aliases.items() if name in weights}
    return ModelFile(
        version=version,
        specification=specification,
        revision=revision,
        weights=weights,
        options={n: v.item() for n, v in variables.items() if _is_option(n, v)},
        texts={
            n: v.numpy().tobytes().decode(errors="replace")
            for n, v in variables.items()
            if _is_text(v)
        },
    )


def _variable(reader: _Reader, name: str, version: int) -> Tensor:
    axes = reader.unsigned("B", name)
    if axes > MAX_AXES:
        raise reader.damaged(f"{name} must have at most {MAX_AXES} axes, found {axes}")
    shape = [reader.unsigned("I", name) for _ in range(axes)]
    code, size = reader.unsigned("B", name), reader.unsigned("I", name)
    if version >= 4:
        data_type = DATA_TYPES[code] if code < len(DATA_TYPES) else None
    else:
        data_type, size = DATA_TYPES_BY_SIZE.get(code), size * code
    if data_type is None:
        raise reader.damaged(f"{name} must be of a known data type, found {code}")
    # Check sizes before reading, so that a damaged size never allocates memory.
    if size != math.prod(shape) * data_type.itemsize:
        raise reader.damaged(f"{name} of shape {shape} in {data_type} cannot have {size} bytes")
    if 0 in shape and axes > 1:  # the other sizes are unlimited
        raise reader.damaged(f"{name} must have numbers, found the shape {shape}")
    return _tensor(reader.bytes(size, name), data_type).reshape(shape)


def _tensor(data: bytes, data_type: torch.dtype) -> Tensor:
    # NumPy has no bfloat16.
    stored_type = torch.int16 if data_type == torch.bfloat16 else data_type
    element = torch.empty(0, dtype=stored_type).numpy().dtype.newbyteorder("<")
    array: NDArray[np.generic] = np.frombuffer(data, element).astype(element.newbyteorder("="))
    return torch.from_numpy(array).view(data_type)


def _is_text(variable: Tensor) -> bool:
    return variable.dtype == torch.int8 and variable.dim() == 1


def _is_option(name: str, variable: Tensor) -> bool:
    return variable.dim() == 0 and not name.endswith(("_scale", "_zero"))


def _weights(variables: Mapping[str, Tensor], reader: _Reader) -> dict[str, Tensor]:
    weights = {}
    scales = {name + "_scale" for name in variables} | {name + "_zero" for name in variables}
    problems = []
    for name, value in variables.items():
        if name in scales or _is_option(name, value) or _is_text(value):
            continue
        if value.is_floating_point():
            weights[name] = value.float()
            continue
        if value.dim() == 0:
            problems.append(f"{name} must be floating point, found one number in {value.dtype}")
            continue
        scale = variables.get(name + "_scale")
        if value.dtype == torch.int32 or name + "_zero" in variables:
            raise reader.damaged(AWQ)
        if scale is None and value.dtype == torch.int16:
            scale = torch.tensor(DEFAULT_INT16_SCALE)
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


Vocabulary = list[str]


def read_vocabulary(
    directory: Path, name: str, *, rows: int = 0, unknown: str = "<unk>"
) -> Vocabulary | None:
    """Read `name`.json or `name`.txt, tokens in the order of their ids; None if neither exists.

    As in CTranslate2, the unknown token is appended to a vocabulary that lacks it, if the model has
    a row for it. Without `rows`, it has none.
    """
    json_path, text_path = directory / f"{name}.json", directory / f"{name}.txt"
    path = json_path if json_path.exists() else text_path
    if not path.exists():
        return None
    try:
        tokens = _read_lines(path) if path == text_path else read_json(path, limit=VOCABULARY_BYTES)
    except FileError as error:
        raise CheckpointError(path, [f"expected a list of tokens: {error.problem}"]) from error
    if not isinstance(tokens, list) or not all_are(str, tokens):
        raise CheckpointError(path, ["expected a list of tokens"])
    if rows == len(tokens) + 1 and unknown not in tokens:
        tokens.append(unknown)
    return tokens


def _read_lines(path: Path) -> Vocabulary:
    try:
        text = read_regular(path, VOCABULARY_BYTES).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(path, [f"expected a list of tokens in UTF-8: {error}"]) from error
    tokens = text.removesuffix("\n").split("\n")
    # A token may end in a carriage return. If all do, the file was written on Windows.
    from_windows = all(token.endswith("\r") for token in tokens)
    return [token[:-1] for token in tokens] if from_windows else tokens
