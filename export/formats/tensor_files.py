"""Files of tensors: safetensors or PyTorch's format, in one file or in parts with an index.

A state dictionary is one file of tensors with any name, possibly nested in a dictionary. PyTorch's
own files are zip archives of a pickle and of the bytes of each storage. A pickle may describe a
tensor as sparse, on another device, or as a view that repeats a few bytes a billion times. Only
tensors whose elements are all in the file are read.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import shown
from dragoman.files.regular_files import FileError, check_regular
from dragoman.reference_model import CheckpointError
from dragoman.reference_model.checkpoint import read_safetensors
from dragoman.reference_model.settings import all_are, first_line

from .contents import listed
from .detection import INDEX_SUFFIX, TENSOR_FILES, no_weights
from .json_files import read_json

Weights = dict[str, Tensor]
"""Tensors by their names in the checkpoint."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Supported formats. Formats of at most 8 bits hold quantized numbers, which need scales."""

EXPECTED_INDEX = "expected a JSON object with a weight_map from names of weights to files"


def read_weights(directory: Path) -> tuple[Weights, Path]:
    """Read all tensors of a directory; return them with their file or index.

    A second file of weights is refused if it has others.
    """
    for name in TENSOR_FILES:
        file, index = directory / name, directory / (name + INDEX_SUFFIX)
        if file.exists():
            weights = read_file(file)
            for other in TENSOR_FILES[TENSOR_FILES.index(name) + 1 :]:
                _check_same(weights, file, directory / other)
            return weights, file
        if index.exists():
            return _read_parts(directory, index), index
    raise CheckpointError(directory, [no_weights()])


def _check_same(weights: Weights, file: Path, other: Path) -> None:
    """Check that a second file has the same weights, in the lower precision of the two.

    Formats store tied weights once or twice, so weights may be in one only.
    """
    if not other.exists():
        return
    others = read_file(other)
    common = weights.keys() & others.keys()
    differing = sorted(n for n in common if not _equal_in_lower(weights[n], others[n]))
    if differing or not common:
        found = listed(differing) if differing else "other names"
        problem = f"expected the weights of {file.name}, found others: {found}; remove one of both"
        raise CheckpointError(other, [problem])


def _equal_in_lower(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    dtype = one.dtype if one.itemsize <= other.itemsize else other.dtype
    return one.to(dtype).equal(other.to(dtype))


def read_file(path: Path) -> Weights:
    """Read the tensors, of at least 16 bits, of one file. No code in it is executed."""
    weights = _load_safely(path)
    if not isinstance(weights, dict):
        raise CheckpointError(path, [f"expected a dictionary, found {type(weights).__name__}"])
    _check_stored(weights, path)
    return weights


def _load_safely(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    try:
        check_regular(path)
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    return _load_pytorch(path)


def _check_stored(weights: Mapping[Any, Any], path: Path) -> None:
    if path.suffix != ".safetensors":  # safetensors files have only named, complete tensors
        _check_tensors(weights, path)
    problems = [
        f"{name}: expected numbers of 16, 32 or 64 bits, found {tensor.dtype}"
        for name, tensor in weights.items()
        if tensor.is_floating_point() and tensor.dtype not in FLOATS
    ]
    if problems:
        raise CheckpointError(path, problems)


def _read_parts(directory: Path, index: Path) -> Weights:
    stated = read_json(index).get("weight_map")
    if not (stated and isinstance(stated, dict) and all_are(str, stated.values())):
        raise CheckpointError(index, [EXPECTED_INDEX])
    files, weights, problems = sorted(set(stated.values())), Weights(), list[str]()
    for name in files:
        try:
            if not name or Path(name).name != name:
                raise FileError(index, "expected a file beside the index")
            check_regular(directory / name)
        except FileError as error:
            problems.append(f"{shown(name)}: {error.problem}")
    for name in [] if problems else files:
        read = read_file(directory / name)
        twice = sorted(read.keys() & weights.keys())
        problems += [f"{weight}: expected in one file, found in several" for weight in twice]
        weights |= read
    if problems:
        raise CheckpointError(index, problems)
    return weights


SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".zip")
"""Suffixes of weight files. PyTorch's own files are zip archives with any suffix."""


def read_state_dict(
    directory: Path, file_name: str | None = None, key: str | None = None
) -> tuple[Weights, Path]:
    """Read a state dictionary; return it with its file. No code in the file is executed.

    The names of the file, and of its entry in a training checkpoint, are required if there are
    several.
    """
    path = _find_file(directory, file_name)
    weights = _state_dict(_load_safely(path), key, path)
    _check_stored(weights, path)
    return weights, path


def _state_dict(content: Any, key: str | None, path: Path) -> Weights:
    if isinstance(content, Mapping) and _is_state_dict(content):
        return dict(content)
    nested = {
        str(name): dict(value)
        for name, value in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(value, Mapping) and _is_state_dict(value)
    }
    if key is None and len(nested) == 1:
        key = next(iter(nested))
    if key in nested:
        return nested[key]
    if nested:
        known = ", ".join(nested)
        problem = f"expected state_dict in config.json to be one of {known}, found {shown(key)}"
    else:
        problem = f"expected a dictionary of tensors by name, found {_describe(content)}"
    raise CheckpointError(path, [problem])


def _find_file(directory: Path, name: str | None) -> Path:
    if name is not None:
        if Path(name).name == name and (directory / name).is_file():
            return directory / name
        raise CheckpointError(directory, [f"weights: expected a file in it, found {shown(name)}"])
    files = sorted(p for p in directory.glob("*") if p.suffix in SUFFIXES and p.is_file())
    if len(files) != 1:
        problem = (
            f"expected one file of weights ({', '.join(SUFFIXES)}), or its name as weights in "
            f"config.json; found {', '.join(p.name for p in files) or 'none'}"
        )
        raise CheckpointError(directory, [problem])
    return files[0]


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def _describe(content: Any) -> str:
    if isinstance(content, Mapping):
        return "one of " + ", ".join(f"{k} ({type(v).__name__})" for k, v in content.items())[:200]
    return type(content).__name__


MAX_LISTED = 5
"""Maximum number of problems with tensors that an error lists."""


def _load_pytorch(path: Path) -> Any:
    """Read a regular file of plain data and tensors. No code in it is executed."""
    is_archive = _check_archive(path)
    try:
        with warnings.catch_warnings():  # warnings about tensors that are refused below
            warnings.simplefilter("ignore")
            # Older files than archives cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        # PyTorch's message names the object in a paragraph on unsafe loading.
        name = re.search(r"GLOBAL (\S+)", str(error))
        found = f"the Python object {name[1]}" if name else "others"
        raise CheckpointError(
            path, [f"expected tensors only (nothing else is loaded), found {found}"]
        ) from error
    except Exception as error:  # torch raises a dozen types for damaged files
        raise CheckpointError(
            path, [f"not a complete PyTorch file: {first_line(error)}"]
        ) from error


def _check_tensors(weights: Mapping[Any, Any], path: Path) -> None:
    """Check that names are text, and that each value is a tensor with all elements in the file."""
    problems = [
        f"expected names as text, found {shown(name)}" for name in weights if not _is_text(name)
    ]
    if not problems:
        others = [name for name, value in weights.items() if not isinstance(value, Tensor)]
        if others:
            first = ", ".join(others[:MAX_LISTED])
            problems = [f"expected tensors only, found others: {first}"]
    if not problems:
        kinds = {name: _unreadable(tensor) for name, tensor in weights.items()}
        problems = [
            f"{name}: expected a tensor stored in full, found {kind}"
            for name, kind in kinds.items()
            if kind is not None
        ]
    if not problems:
        stored, size = _stored_bytes(weights.values()), path.stat().st_size
        if stored > size:
            problems = [f"expected the numbers of all tensors, {stored} bytes, in a file of {size}"]
    if problems:
        raise CheckpointError(path, problems[:MAX_LISTED])


def _check_archive(path: Path) -> bool:
    """Check the sizes in an archive; return whether it is one.

    Files from before PyTorch 1.6 are not.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # PyTorch also checks this signature
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception as error:  # zipfile raises half a dozen types for damaged files
        raise CheckpointError(
            path, [f"not a complete PyTorch file: {first_line(error)}"]
        ) from error
    compressed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise CheckpointError(
            path,
            [
                f"expected an archive without compression, as PyTorch writes it, found "
                f"{compressed[0]!r} compressed"
            ],
        )
    stated, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if stated > size:
        raise CheckpointError(
            path, [f"not a complete PyTorch file: its entries need {stated} bytes, found {size}"]
        )
    return True


def _unreadable(tensor: Tensor) -> str | None:
    """Describe a tensor without all its elements in memory; None if it has them all."""
    if type(tensor) not in (Tensor, nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.is_nested:
        return "a nested one"
    if tensor.layout != torch.strided:
        return f"one in the layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.device.type != "cpu":
        return f"one without numbers (device {tensor.device.type})"
    if tensor.is_quantized:
        return f"a quantized one ({tensor.dtype})"
    if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
        return f"a view that repeats its numbers, of shape {list(tensor.shape)}"
    return None


def _stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of tensors; shared storages count once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _is_text(name: object) -> bool:
    try:
        return isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
