"""A directory of Hugging Face -> a reference model, without their library.

Read are `config.json`, `generation_config.json` where there is one, and the weights: safetensors or
PyTorch's format, in one file or in several with an index.
"""

from __future__ import annotations

from pathlib import Path

from dragoman.reference_model import ConfigError, Transformer
from dragoman.reference_model.checkpoint import CONFIG_FILE

from . import FAMILIES
from .building import build
from .family import Family, Values, Weights, check_positions
from .generation import generation_config
from .json_files import read_json
from .speech import check_features, special_tokens, with_speech
from .weights import read_weights

GENERATION_FILE = "generation_config.json"
PREFIX = "model."
BASE_PARTS = ("shared.", "encoder.", "decoder.")
"""What names of weights begin with in a family that puts the prefix before them."""


def load_hugging_face(directory: Path) -> Transformer:
    """Read a checkpoint into a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files missing or unreadable; weights missing, unknown, misshapen, not
            finite, or unequal although tied. All problems are listed at once.
        ConfigError: an unknown architecture, or one with options that are not supported.
    """
    values: Values = read_json(directory / CONFIG_FILE)
    family = family_of(values)
    path = directory / GENERATION_FILE
    settings: Values = read_json(path) if path.is_file() else values
    values = _with_tokens(values, settings)
    config = family.config(values)
    check_positions(config)
    generation = generation_config(settings, config)
    if config.feature_size is not None:
        check_features(directory, config)
        generation = with_speech(generation, settings, special_tokens(directory), config)
    weights, origin = read_weights(directory)
    weights = _with_prefix(weights, family)
    config = family.with_weights(values, config, weights)
    problems = family.complete(weights, config)
    return build(config, generation, weights, family.weight_name, origin, problems)


def family_of(values: Values) -> Family:
    """The family that a `config.json` says it is of.

    Raises:
        ConfigError: it is not one of `FAMILIES`; lists them.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError([f"model_type: expected one of {known}, found {model_type!r}"])
    return FAMILIES[model_type]


def _with_tokens(values: Values, settings: Values) -> Values:
    """With the special tokens of the generation settings, which are what counts in decoding."""
    names = ("decoder_start_token_id", "eos_token_id", "bos_token_id")
    given = {name: settings[name] for name in names if settings.get(name) is not None}
    tokens = {**{name: values[name] for name in names if name in values}, **given}
    problems = []
    for name, value in tokens.items():
        if not isinstance(value, list):
            continue
        if not value or not all(type(token) is int for token in value):
            problems.append(f"{name}: expected a token id, found {value!r}")
        elif len(set(value)) > 1:
            what = "end tokens" if name == "eos_token_id" else "tokens"
            problems.append(f"{name}: several {what} are not supported, found {value}")
        else:
            tokens[name] = value[0]
    if problems:
        raise ConfigError(problems)
    return {**values, **tokens}


def _with_prefix(weights: Weights, family: Family) -> Weights:
    """Saved from the model without its head (`BartModel`), names lack what they begin with."""
    known = family.weight_name("encoder.norm.gain").startswith(PREFIX)
    if not known or any(name.startswith(PREFIX) for name in weights):
        return weights
    return {
        PREFIX + name if name.startswith(BASE_PARTS) else name: weight
        for name, weight in weights.items()
    }
