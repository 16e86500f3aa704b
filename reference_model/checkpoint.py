"""Checkpoints: a directory of `config.json` and `model.safetensors`, and tokenizers beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.errors import DragomanError

from .config import ConfigError, ModelConfig
from .files import write_whole
from .transformer import Transformer

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


class CheckpointError(DragomanError):
    """A checkpoint that does not hold what its configuration asks for; lists every problem."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{path}: " + "; ".join(problems))


def save_checkpoint(model: Transformer, directory: Path) -> None:
    """Write configuration and weights; tied weights are stored once.

    Each file appears whole or not at all.

    Raises:
        DragomanError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    config = json.dumps(model.config.to_dict(), indent=2) + "\n"
    write_whole(directory / WEIGHTS_FILE, lambda path: save_file(weights, path))
    write_whole(directory / CONFIG_FILE, lambda path: path.write_text(config, encoding="utf-8"))


def load_checkpoint(directory: Path) -> Transformer:
    """Read a checkpoint into a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files missing or unreadable; weights missing, unknown, misshapen, of
            another kind than floating point, or not finite. All problems are listed at once.
        ConfigError: the configuration is not one of a model that can be built.
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
    # Compared before any memory is taken: a damaged configuration may ask for more than there is.
    check_weights(weight_shapes(config), weights, directory / WEIGHTS_FILE)
    try:
        model = Transformer(config)
    except (RuntimeError, MemoryError) as error:
        raise too_large(error) from error
    load_weights(model, weights, origin=directory / WEIGHTS_FILE)
    return model.eval()


def load_weights(model: Transformer, weights: Mapping[str, Tensor], *, origin: Path) -> None:
    """Copy weights into the model after checking all of them.

    Raises:
        CheckpointError: as in `load_checkpoint`; the model is then unchanged.
    """
    expected = dict(model.named_parameters())
    check_weights({name: p.shape for name, p in expected.items()}, weights, origin)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(weights[name])


def weight_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """The weights that a configuration asks for, without memory for them."""
    try:
        with torch.device("meta"):
            return {name: p.shape for name, p in Transformer(config).named_parameters()}
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise too_large(error) from error


def too_large(error: Exception) -> ConfigError:
    """What is said of sizes for which no memory can be had."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError([f"the sizes are beyond this machine: {reason}"])


def check_weights(
    expected: Mapping[str, torch.Size],
    weights: Mapping[str, Tensor],
    origin: Path,
    others: Sequence[str] = (),
) -> None:
    """Compare weights with the shapes expected.

    Args:
        others: problems found before

    Raises:
        CheckpointError: with these, all missing, unknown, misshapen weights, and values that are
            no numbers.
    """
    problems = [*others]
    problems += [f"missing weight {name}" for name in expected if name not in weights]
    problems += [f"unknown weight {name}" for name in weights if name not in expected]
    for name in expected.keys() & weights.keys():
        found = weights[name]
        if found.shape != expected[name]:
            problems.append(
                f"{name} must have shape {list(expected[name])}, found {list(found.shape)}"
            )
        elif not found.is_floating_point():
            problems.append(f"{name} must be floating point, found {found.dtype}")
        elif bad := int((~torch.isfinite(found.float())).sum()):
            problems.append(f"{name} has {bad} of {found.numel()} values that are NaN or infinite")
    if problems:
        raise CheckpointError(origin, sorted(problems))
