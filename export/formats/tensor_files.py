"""Files of tensors: safetensors or PyTorch's format, in one file or in parts with an index.

A state dictionary is one file of tensors with any name, possibly nested in a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import shown
from dragoman.files.regular_files import FileError, check_regular
from dragoman.reference_model import CheckpointError
from dragoman.reference_model.checkpoint import read_safetensors
from dragoman.reference_model.settings import all_are

from .contents import listed
from .detection import INDEX_SUFFIX, TENSOR_FILES, no_weights
from .json_files import read_json
from .pytorch_files import check_tensors, load_pytorch

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
    return load_pytorch(path)


def _check_stored(weights: Mapping[Any, Any], path: Path) -> None:
    if path.suffix != ".safetensors":  # safetensors files have only named, complete tensors
        check_tensors(weights, path)
    problems = [
        f"{name}: expected numbers of 16, 32 or 64 bits, found {tensor.dtype}"
        for name, tensor in weights.items()
        if tensor.is_floating_point() and tensor.dtype not in FLOATS
    ]
    if problems:
        raise CheckpointError(path, problems)


def _read_parts(directory: Path, index: Path) -> Weights:
    try:
        files = sorted(set(read_json(index)["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(index, [EXPECTED_INDEX]) from error
    if not all_are(str, files):
        raise CheckpointError(index, [EXPECTED_INDEX])
    outside = [name for name in files if Path(name).name != name]
    missing = [name for name in files if not (directory / name).is_file()]
    if outside or missing:
        raise CheckpointError(
            index,
            [f"{name}: expected a file beside the index" for name in outside]
            + [f"{name}: missing" for name in missing],
        )
    weights: Weights = {}
    for name in files:
        weights |= read_file(directory / name)
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
