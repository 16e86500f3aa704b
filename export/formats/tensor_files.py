"""Files of tensors: safetensors or PyTorch's format, in one file or in several with an index."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman.reference_model import CheckpointError

from .detection import INDEX_SUFFIX, TENSOR_FILES, no_weights
from .json_files import read_json

Weights = dict[str, Tensor]
"""Tensors by the names that the checkpoint gives them."""

EXPECTED_INDEX = "expected a JSON object with a weight_map from names of weights to files"


def read_weights(directory: Path) -> tuple[Weights, Path]:
    """All tensors of a directory, and the file (or index) that they come from.

    Raises:
        CheckpointError: there are no weights, or they cannot be read.
    """
    for name in TENSOR_FILES:
        file, index = directory / name, directory / (name + INDEX_SUFFIX)
        if file.is_file():
            return read_file(file), file
        if index.is_file():
            return _read_parts(directory, index), index
    raise CheckpointError(directory, [no_weights()])


def read_file(path: Path) -> Weights:
    """The tensors of one file. No code in it is executed.

    Raises:
        CheckpointError: the file is damaged, or is not a dictionary of tensors.
    """
    weights = load_safely(path)
    if not isinstance(weights, dict):
        raise CheckpointError(path, [f"expected a dictionary, found {type(weights).__name__}"])
    others = [str(name) for name, value in weights.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(
            path, [f"expected tensors only, found others: {', '.join(others[:5])}"]
        )
    return weights


def load_safely(path: Path) -> Any:
    """The content of a safetensors or PyTorch file. No code in it is executed.

    Raises:
        CheckpointError: the file is damaged, or holds anything but plain data and tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise CheckpointError(path, [f"not a complete safetensors file: {error}"]) from error
    except pickle.UnpicklingError as error:
        # PyTorch names the object within a paragraph on how to load it regardless.
        name = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        found = f"the Python object {name[1]}" if name else str(error).splitlines()[0]
        raise CheckpointError(
            path, [f"expected tensors only (nothing else is loaded), found {found}"]
        ) from error
    except Exception as error:  # torch raises a dozen types for damaged files
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(path, [f"not a complete PyTorch file: {first}"]) from error


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
