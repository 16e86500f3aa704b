"""Checkpoints: directories with `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dragoman.files.regular_files import (
    SETTINGS_BYTES,
    FileError,
    check_regular,
    memory_of_machine,
    read_regular,
    write_whole,
)

from .config import ModelConfig
from .models import ReferenceModel, make_model
from .settings import CheckpointError, ConfigError, first_line

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_checkpoint(model: ReferenceModel, directory: Path) -> None:
    """Write configuration and weights; tied weights are stored once.

    Raises:
        DragomanError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    config = json.dumps(model.config.to_dict(), indent=2) + "\n"
    write_tensors(directory / WEIGHTS_FILE, lambda path: save_file(weights, path))
    write_whole(directory / CONFIG_FILE, lambda path: path.write_text(config, encoding="utf-8"))


def load_checkpoint(directory: Path, values: Mapping[str, Any] | None = None) -> ReferenceModel:
    """Load a checkpoint as a model in evaluation mode, fp32.

    Args:
        values: the fields of `config.json`, if they have been read already

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
    path = directory / CONFIG_FILE
    config = _read_config(path) if values is None else ModelConfig.from_dict(values)
    check_positions(config)
    weights = read_safetensors(directory / WEIGHTS_FILE)
    # Checked before memory is allocated: a damaged configuration may require too much.
    check_layers(config, weights)
    check_weights(weight_shapes(config), weights, directory / WEIGHTS_FILE)
    try:
        with Uninitialized():
            model = make_model(config)
    except (RuntimeError, MemoryError) as error:
        raise too_large(error) from error
    load_weights(model, weights, origin=directory / WEIGHTS_FILE)
    return model.eval()


def write_tensors(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file of tensors completely or not at all, with safetensors or PyTorch.

    Raises:
        DragomanError: the file cannot be written.
    """
    # safetensors raises its own error, torch.save a RuntimeError.
    write_whole(path, write, (OSError, SafetensorError, RuntimeError))


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        CheckpointError: the file is not regular, is larger than memory, or is damaged.
    """
    try:
        check_regular(path)
        return load_file(path)
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    except Exception as error:  # also raised for data types that PyTorch lacks
        problem = f"not a whole safetensors file: {first_line(error)}"
        raise CheckpointError(path, [problem]) from error


def _read_config(path: Path) -> ModelConfig:
    try:
        text = read_regular(path, SETTINGS_BYTES).decode()
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(path, [f"not UTF-8: {error}"]) from error
    return ModelConfig.from_json(text)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, origin: Path) -> None:
    """Check all weights, then copy them into the model.

    Args:
        weights: one tensor per named parameter of the model
        origin: the file of the weights, for errors

    Raises:
        CheckpointError: see `load_checkpoint`; the model is then unchanged.
    """
    expected = dict(model.named_parameters())
    check_weights({name: p.shape for name, p in expected.items()}, weights, origin)
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(weights[name])


NUMBERS_AT_ONCE = 2**22
"""Numbers of a weight that are checked at once."""


def _not_finite(weight: Tensor) -> int:
    as_stored = weight.dtype in (torch.float16, torch.bfloat16, torch.float32)
    parts = weight.reshape(-1).split(NUMBERS_AT_ONCE)
    finite = ((part if as_stored else part.float()).isfinite() for part in parts)
    return sum(0 if part.all() else int((~part).sum()) for part in finite)


RANDOM_NUMBERS = (Tensor.uniform_, Tensor.normal_)


class Uninitialized(TorchFunctionMode):
    """A context in which modules are made without initial weights, because stored ones follow."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch, unless it initializes a tensor."""
        kwargs = kwargs or {}
        # Some functions of nn.init are not dispatched themselves, but the methods that they call.
        if getattr(func, "__module__", "") == nn.init.__name__ or func in RANDOM_NUMBERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


MAX_POSITIONS = 10**6
MAX_TABLE_SIZE = 2**26
"""Maximum numbers in a table of positions: 65,536 positions at a width of 1024. Such a table takes
256 MiB; its computation takes two seconds and 1.5 GiB."""


def check_positions(config: ModelConfig) -> None:
    """Refuse absurd numbers of positions before their tables, which no weight shows, are computed.

    Raises:
        ConfigError: there are more positions than any model has.
    """
    problems = []
    for name in ("max_source_positions", "max_target_positions", "relative_max_distance"):
        positions = getattr(config, name)
        if positions > MAX_POSITIONS:
            problems.append(f"{name}: expected at most {MAX_POSITIONS}, found {positions}")
        elif config.positions != "relative" and positions * config.d_model > MAX_TABLE_SIZE:
            problems.append(
                f"{name}: expected a table of at most {MAX_TABLE_SIZE} numbers, "
                f"found {positions} positions of {config.d_model}"
            )
    if problems:
        raise ConfigError(problems)


def weight_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Compute the shape of each weight that a configuration requires, without allocating them.

    Raises:
        ConfigError: the model is too large for this machine.
    """
    shapes = {}
    try:
        with torch.device("meta"):
            model = make_model(_with_one_layer(config))
        for name, parameter in model.named_parameters():
            stack, found, rest = name.partition(".layers.0.")
            layers = getattr(config, f"{stack}_layers") if found else 1
            for layer in range(layers):
                shapes[f"{stack}.layers.{layer}.{rest}" if found else name] = parameter.shape
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise too_large(error) from error
    size, memory = sum(4 * shape.numel() for shape in shapes.values()), memory_of_machine()
    if size > memory:
        raise too_large(MemoryError(f"its weights need {size} bytes, found {memory}"))
    return shapes


def _with_one_layer(config: ModelConfig) -> ModelConfig:
    layers: dict[str, Any] = {
        name: min(1, getattr(config, name)) for name in ("encoder_layers", "decoder_layers")
    }
    if config.encoder_order is not None:
        layers["encoder_order"] = (0,)
    return config.replace(**layers)


def check_layers(config: ModelConfig, weights: Sized) -> None:
    """Refuse absurd numbers of layers, each of which needs tensors of the file.

    Raises:
        ConfigError: there are more layers than tensors.
    """
    problems = [
        f"{name}: expected at most {len(weights)}, the number of weights in the file, found {count}"
        for name in ("encoder_layers", "decoder_layers")
        if (count := getattr(config, name)) > len(weights)
    ]
    if problems:
        raise ConfigError(problems)


def too_large(error: Exception) -> ConfigError:
    """Return the error for a model whose tensors cannot be allocated."""
    return ConfigError([f"the model is too large for this machine: {first_line(error)}"])


def check_weights(
    expected: Mapping[str, torch.Size],
    weights: Mapping[str, Tensor],
    origin: Path,
    other_problems: Sequence[str] = (),
) -> None:
    """Check weights against the expected shapes.

    Args:
        expected: shapes by name
        origin: the file of the weights, for errors
        other_problems: problems found earlier, to report in the same error

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
        elif bad := _not_finite(weight):
            problems.append(f"{name} has {bad} of {weight.numel()} values that are NaN or infinite")
    if problems:
        raise CheckpointError(origin, sorted(problems))
