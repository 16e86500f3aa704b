"""State dictionaries of PyTorch models whose code is their owner's, and what is beside them.

A directory holds one file of weights and the `config.json` that its owner writes: only what cannot
be seen in the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.reference_model import CheckpointError, ConfigError

from .family import Values, Weights
from .weights import load_safely

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".zip")
"""Of files of weights. PyTorch's own files are zip archives, whatever they are called."""
COMMON_FIELDS = {
    "model_type": str,
    "weights": str,
    "state_dict": str,
    "num_heads": int,
    "pad_token_id": int,
    "start_token_id": int,
    "end_token_id": int,
}
"""Fields of `config.json` in any such directory, and their types."""
REQUIRED = ("num_heads", "pad_token_id", "start_token_id", "end_token_id")


def read_state_dict(directory: Path, values: Values) -> tuple[Weights, Path]:
    """The tensors by name, and where they come from. Nothing in the file is executed.

    Args:
        values: `weights` is the name of the file, where there are several; `state_dict` is what the
            state dictionary is called in a training's checkpoint that has several

    Raises:
        CheckpointError: there is no such file, it cannot be read, or has no state dictionary.
    """
    path = _find(directory, values.get("weights"))
    content = load_safely(path)
    if isinstance(content, Mapping) and _is_state_dict(content):
        return dict(content), path
    inside = {
        str(name): dict(value)
        for name, value in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(value, Mapping) and _is_state_dict(value)
    }
    name = values.get("state_dict")
    if name is None and len(inside) == 1:
        name = next(iter(inside))
    if name not in inside:
        problem = f"expected a dictionary of tensors by name, found {_described(content)}"
        if inside:
            problem = (
                f"expected state_dict in config.json to be one of {', '.join(inside)}, "
                f"found {name!r}"
            )
        raise CheckpointError(path, [problem])
    return inside[name], path


def _find(directory: Path, name: str | None) -> Path:
    if name is not None:
        if Path(name).name == name and (directory / name).is_file():
            return directory / name
        raise CheckpointError(directory, [f"weights: expected a file in it, found {name!r}"])
    found = sorted(p for p in directory.glob("*") if p.suffix in SUFFIXES and p.is_file())
    if len(found) != 1:
        problem = (
            f"expected one file of weights ({', '.join(SUFFIXES)}), or its name as weights in "
            f"config.json; found {', '.join(p.name for p in found) or 'none'}"
        )
        raise CheckpointError(directory, [problem])
    return found[0]


def _is_state_dict(value: Mapping[Any, Any]) -> bool:
    return bool(value) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return "one of " + ", ".join(f"{k} ({type(v).__name__})" for k, v in content.items())[:200]
    return type(content).__name__


def check_fields(values: Values, others: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise a ConfigError for fields that are missing, unknown or of another type.

    Args:
        others: fields that may be there beside the common ones, and their types
    """
    known = {**COMMON_FIELDS, **others}
    problems = [f"missing field {name!r}" for name in REQUIRED if name not in values]
    problems += [
        f"unknown field {name!r}, expected one of {', '.join(known)}"
        for name in values
        if name not in known
    ]
    for name, kind in known.items():
        value = values.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and value is True)):
            problems.append(f"{name}: expected {_name(kind)}, found {value!r}")
    if problems:
        raise ConfigError(problems)


def _name(kind: type | tuple[type, ...]) -> str:
    words = {int: "an integer", str: "a string", bool: "true or false", float: "a number"}
    words |= {dict: "an object", list: "a list"}
    return words[kind if isinstance(kind, type) else kind[0]]


def layer_count(weights: Weights, prefix: str) -> int:
    """How many layers have weights whose names begin with a prefix, a number and a dot."""
    rest = (name[len(prefix) :] for name in weights if name.startswith(prefix))
    return len({n.partition(".")[0] for n in rest if n.partition(".")[0].isdecimal()})
