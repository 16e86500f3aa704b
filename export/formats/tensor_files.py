"""Files of tensors: safetensors or PyTorch's format, in one file or in several with an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.reference_model import CheckpointError
from dragoman.reference_model.checkpoint import read_safetensors
from dragoman.regular_files import FileError, check_regular

from .detection import INDEX_SUFFIX, TENSOR_FILES, no_weights
from .json_files import read_json
from .pytorch_files import check_tensors, load_pytorch

Weights = dict[str, Tensor]
"""Tensors by the names that the checkpoint gives them."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Formats of 8 bits and less hold quantized numbers, which their scales belong to."""

EXPECTED_INDEX = "expected a JSON object with a weight_map from names of weights to files"


def read_weights(directory: Path) -> tuple[Weights, Path]:
    """All tensors of a directory, and the file (or index) that they come from.

    Raises:
        CheckpointError: there are no weights, or they cannot be read.
    """
    for name in TENSOR_FILES:
        file, index = directory / name, directory / (name + INDEX_SUFFIX)
        if file.exists():
            return read_file(file), file
        if index.exists():
            return _read_parts(directory, index), index
    raise CheckpointError(directory, [no_weights()])


def read_file(path: Path) -> Weights:
    """The tensors of one file. No code in it is executed.

    Raises:
        CheckpointError: as `load_safely` and `check_stored`; or it is not a dictionary.
    """
    weights = load_safely(path)
    if not isinstance(weights, dict):
        raise CheckpointError(path, [f"expected a dictionary, found {type(weights).__name__}"])
    check_stored(weights, path)
    return weights


def load_safely(path: Path) -> Any:
    """The content of a safetensors or PyTorch file. No code in it is executed.

    Raises:
        CheckpointError: the file is not regular, larger than memory or damaged, or holds anything
            but plain data and tensors.
    """
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    try:
        check_regular(path)
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    return load_pytorch(path)


def check_stored(weights: Mapping[Any, Any], path: Path) -> None:
    """Check what a file is read for: numbers of 16 bits or more by name, all of them in the file.

    Raises:
        CheckpointError: lists what is something else.
    """
    if path.suffix != ".safetensors":  # which has neither names nor tensors of other kinds
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
    if not all(isinstance(name, str) for name in files):
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
