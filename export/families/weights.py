"""Weights of a checkpoint's directory: safetensors or PyTorch's format, in one file or several."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman.reference_model import CheckpointError

from .json_files import read_json

FILES = ("model.safetensors", "pytorch_model.bin")
"""In order of preference; each may be split, with an index beside it."""

EXPECTED_INDEX = "expected a JSON object with a weight_map from names of weights to files"


def read_weights(directory: Path) -> tuple[dict[str, Tensor], Path]:
    """All tensors by name, and where they come from.

    Raises:
        CheckpointError: there are no weights, or they cannot be read.
    """
    for name in FILES:
        file, index = directory / name, directory / f"{name}.index.json"
        if file.is_file():
            return read_file(file), file
        if index.is_file():
            return _read_split(directory, index), index
    raise CheckpointError(
        directory, [f"expected {' or '.join(FILES)}, or an index of their parts, found none"]
    )


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file; nothing in it is executed.

    Raises:
        CheckpointError: it is damaged, or holds something else than a dictionary of tensors.
    """
    weights = load_safely(path)
    if not isinstance(weights, dict):
        raise CheckpointError(path, [f"expected a dictionary, found {type(weights).__name__}"])
    strange = [str(name) for name, value in weights.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(path, [f"expected tensors, found others: {', '.join(strange[:5])}"])
    return weights


def load_safely(path: Path) -> Any:
    """What a file of safetensors or of PyTorch holds; nothing in it is executed.

    Raises:
        CheckpointError: it is damaged, or holds something else than plain data and tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise CheckpointError(path, [f"not a whole safetensors file: {error}"]) from error
    except pickle.UnpicklingError as error:
        first = str(error).splitlines()[0]
        raise CheckpointError(
            path, [f"expected tensors only, for nothing else is loaded: {first}"]
        ) from error
    except Exception as error:  # of damaged files torch raises a dozen types
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(path, [f"not a whole PyTorch file: {first}"]) from error


def _read_split(directory: Path, index: Path) -> dict[str, Tensor]:
    try:
        places = read_json(index)["weight_map"]
        files = sorted(set(places.values()))
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
    weights: dict[str, Tensor] = {}
    for name in files:
        weights |= read_file(directory / name)
    return weights
