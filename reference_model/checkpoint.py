"""Checkpoints: directories with `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import ModelConfig
from .errors import CheckpointError, ConfigError
from .files import write_whole
from .transformer import Transformer

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_checkpoint(model: Transformer, directory: Path) -> None:
    """Write configuration and weights; tied weights are stored once.

    Each file is written completely or not at all.

    Raises:
        DragomanError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    config = json.dumps(model.config.to_dict(), indent=2) + "\n"
    write_whole(directory / WEIGHTS_FILE, lambda path: save_file(weights, path))
    write_whole(directory / CONFIG_FILE, lambda path: path.write_text(config, encoding="utf-8"))


def load_checkpoint(directory: Path) -> Transformer:
    """Load a checkpoint as a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files are missing or unreadable; weights are missing, unknown, misshapen,
            not floating point, NaN or infinite. All problems are listed at once.
        ConfigError: the configuration is invalid, or the model too large for this machine.
    """
    missing = [n for n in (CONFIG_FILE, WEIGHTS_FILE) if not (directory / n).is_file()]
    if missing:
        raise CheckpointError(
            directory,
            [
                f"expected a checkpoint with {CONFIG_FILE} and {WEIGHTS_FILE}, found no {n}"
                for n in missing
            ],
        )
    try:
        text = (directory / CONFIG_FILE).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(directory / CONFIG_FILE, [f"not UTF-8: {error}"]) from error
    config = ModelConfig.from_json(text)
    try:
        weights = load_file(directory / WEIGHTS_FILE)
    except SafetensorError as error:
        raise CheckpointError(
            directory / WEIGHTS_FILE, [f"not a whole safetensors file: {error}"]
        ) from error
    # Before any memory is allocated: a damaged configuration may demand more than there is.
    check_weights(weight_shapes(config), weights, directory / WEIGHTS_FILE)
    try:
        model = Transformer(config)
    except (RuntimeError, MemoryError) as error:
        raise too_large(error) from error
    load_weights(model, weights, origin=directory / WEIGHTS_FILE)
    return model.eval()


def load_weights(model: Transformer, weights: Mapping[str, Tensor], *, origin: Path) -> None:
    """Check all weights, then copy them into the model.

    Args:
        weights: one tensor per named parameter of the model
        origin: the file they come from, for error messages

    Raises:
        CheckpointError: as `load_checkpoint` raises it; the model is then unchanged.
    """
    expected = dict(model.named_parameters())
    check_weights({name: p.shape for name, p in expected.items()}, weights, origin)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(weights[name])


def weight_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """The shape of each weight that a configuration requires, computed without allocating them.

    Raises:
        ConfigError: the model is too large for this machine.
    """
    try:
        with torch.device("meta"):
            return {name: p.shape for name, p in Transformer(config).named_parameters()}
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise too_large(error) from error


def too_large(error: Exception) -> ConfigError:
    """The error for a model whose tensors cannot be allocated."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError([f"the model is too large for this machine: {reason}"])


def check_weights(
    expected: Mapping[str, torch.Size],
    weights: Mapping[str, Tensor],
    origin: Path,
    other_problems: Sequence[str] = (),
) -> None:
    """Check weights against the expected shapes.

    Args:
        expected: shapes by name
        origin: the file the weights come from, for error messages
        other_problems: problems found earlier, to be reported together with those found here

    Raises:
        CheckpointError: lists these problems and all weights that are missing, unknown, misshapen,
            not floating point, NaN or infinite.
    """
    problems = [*other_problems]
    problems += [f"missing weight {name}" for name in expected if name not in weights]
    problems += [f"unknown weight {name}" for name in weights if name not in expected]
    for name in expected.keys() & weights.keys():
        weight = weights[name]
        if weight.shape != expected[name]:
            problems.append(
                f"{name} must have shape {list(expected[name])}, found {list(weight.shape)}"
            )
        elif not weight.is_floating_point():
            problems.append(f"{name} must be floating point, found {weight.dtype}")
        elif bad := int((~torch.isfinite(weight.float())).sum()):
            problems.append(f"{name} has {bad} of {weight.numel()} values that are NaN or infinite")
    if problems:
        raise CheckpointError(origin, sorted(problems))
