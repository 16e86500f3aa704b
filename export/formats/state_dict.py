"""State dictionaries: one file of weights, whose model's code belongs to its owner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.reference_model import CheckpointError

from .tensor_files import Weights, check_stored, load_safely

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".zip")
"""Of files of weights. PyTorch's own files are zip archives, whatever their suffix."""


def read_state_dict(
    directory: Path, file_name: str | None = None, key: str | None = None
) -> tuple[Weights, Path]:
    """The tensors by name, and the file that they come from. No code in it is executed.

    Args:
        file_name: the file of weights; needed if there are several
        key: of the state dictionary in a training checkpoint, needed where it has several

    Raises:
        CheckpointError: there is no such file, it cannot be read, or has no state dictionary.
    """
    path = _find_file(directory, file_name)
    weights = _state_dict(load_safely(path), key, path)
    check_stored(weights, path)
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
        problem = (
            f"expected state_dict in config.json to be one of {', '.join(nested)}, found {key!r}"
        )
    else:
        problem = f"expected a dictionary of tensors by name, found {_describe(content)}"
    raise CheckpointError(path, [problem])


def _find_file(directory: Path, name: str | None) -> Path:
    if name is not None:
        if Path(name).name == name and (directory / name).is_file():
            return directory / name
        raise CheckpointError(directory, [f"weights: expected a file in it, found {name!r}"])
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
