"""A directory of Hugging Face -> a reference model, without their library.

Read are `config.json`, `generation_config.json` where there is one, and the weights: safetensors or
PyTorch's format, in one file or in several with an index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.reference_model import CheckpointError, ConfigError, ModelConfig, Transformer
from dragoman.reference_model.checkpoint import CONFIG_FILE

from . import FAMILIES
from .building import build
from .family import Family
from .generation import generation_config
from .speech import check_features, special_tokens, with_speech
from .weights import read_weights

GENERATION_FILE = "generation_config.json"


def load_hugging_face(directory: Path) -> Transformer:
    """Read a checkpoint into a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files missing or unreadable; weights missing, unknown, misshapen, not
            finite, or unequal although tied. All problems are listed at once.
        ConfigError: an unknown architecture, or one with options that are not supported.
    """
    values = read_json(directory / CONFIG_FILE)
    family = family_of(values)
    config = family.config(values)
    path = directory / GENERATION_FILE
    settings = read_json(path) if path.is_file() else values
    config = _with_tokens(config, settings)
    generation = generation_config(settings, config)
    if config.feature_size is not None:
        check_features(directory, config)
        generation = with_speech(generation, settings, special_tokens(directory), config)
    weights, origin = read_weights(directory)
    config = family.with_weights(values, config, weights)
    problems = family.complete(weights, config)
    return build(config, generation, weights, family.weight_name, origin, problems)


def family_of(values: Mapping[str, Any]) -> Family:
    """The family that a `config.json` says it is of.

    Raises:
        ConfigError: it is not one of `FAMILIES`; lists them.
    """
    model_type = values.get("model_type")
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError([f"model_type: expected one of {known}, found {model_type!r}"])
    return FAMILIES[model_type]


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            path.parent, [f"expected a readable {path.name}: {error.strerror}"]
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, [f"not JSON: {error}"]) from error
    if not isinstance(values, dict):
        raise CheckpointError(path, [f"expected a JSON object, found {type(values).__name__}"])
    return values


def _with_tokens(config: ModelConfig, settings: Mapping[str, Any]) -> ModelConfig:
    """With the special tokens of the generation settings, which are what counts in decoding."""
    changes = {}
    names = {"start_token_id": "decoder_start_token_id", "end_token_id": "eos_token_id"}
    for ours, theirs in names.items():
        value = settings.get(theirs)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ConfigError([f"{theirs}: expected one token, found {value}"])
            value = value[0]
        if value is not None:
            changes[ours] = value
    return config.replace(**changes)
