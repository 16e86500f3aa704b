"""A directory of Hugging Face -> a reference model and its tokenizers, without their library.

Read are `config.json`, `generation_config.json` if there is one, the weights, and the files of the
tokenizers. What a family does with them is in its record.
"""

from __future__ import annotations

from pathlib import Path

from dragoman.reference_model import ConfigError, Transformer
from dragoman.reference_model.checkpoint import check_positions

from ..formats.detection import CONFIG_FILE, unknown_model_type
from ..formats.json_files import Values, read_json
from ..formats.tensor_files import Weights, read_weights
from ..tokenizers import TokenizerCheckpoint, TokenizerFiles, choose_kind
from . import FAMILIES
from .building import build
from .checkpoint import Checkpoint
from .family import Family

GENERATION_FILE = "generation_config.json"
PREFIX = "model."
BASE_PARTS = ("shared.", "encoder.", "decoder.")
"""How names of weights begin after the prefix, in families that have the prefix."""


def read_hugging_face(directory: Path) -> Checkpoint:
    """Read a model and its tokenizers.

    Raises:
        CheckpointError, ConfigError: as `load_hugging_face`.
        DragomanError: the tokenizers cannot be read.
    """
    values = read_json(directory / CONFIG_FILE)
    model = _load(directory, values)
    target_vocab_size = model.config.target_vocab_size
    tokenizers = find_hugging_face_tokenizers(
        directory,
        family_of(values),
        values,
        source_vocab_size=model.config.source_vocab_size or target_vocab_size,
        target_vocab_size=target_vocab_size,
    )
    return Checkpoint(model, tokenizers)


def load_hugging_face(directory: Path) -> Transformer:
    """Read a model in evaluation mode, fp32.

    Raises:
        CheckpointError: files are missing or unreadable; weights are missing, unknown, misshapen,
            not finite, or tied by the configuration and yet different. All problems are listed.
        ConfigError: the architecture is unknown, or has options that are not supported.
    """
    return _load(directory, read_json(directory / CONFIG_FILE))


def find_hugging_face_tokenizers(
    directory: Path,
    family: Family,
    values: Values,
    *,
    source_vocab_size: int,
    target_vocab_size: int,
) -> TokenizerFiles | None:
    """The tokenizers of a directory; None if there are none.

    Args:
        family: of the model
        values: fields of `config.json`
        source_vocab_size, target_vocab_size: of the model as read; the same if its input is not
            text

    Raises:
        DragomanError: a file is damaged or unusable, half of a pair is missing, ids are outside the
            model's vocabulary, or the package sentencepiece is missing.
    """
    checkpoint = TokenizerCheckpoint(directory, values, source_vocab_size, target_vocab_size)
    all_kinds = (kind for known in FAMILIES.values() for kind in known.tokenizers)
    return choose_kind(checkpoint, family.tokenizers, all_kinds).read(checkpoint)


def family_of(values: Values) -> Family:
    """The family that a `config.json` names.

    Raises:
        ConfigError: it is not one of `FAMILIES`.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError([unknown_model_type(model_type)])
    return FAMILIES[model_type]


def _load(directory: Path, values: Values) -> Transformer:
    family = family_of(values)
    path = directory / GENERATION_FILE
    settings: Values = read_json(path) if path.exists() else values
    values = _with_special_tokens(values, settings)
    config = family.config(values)
    check_positions(config)
    generation = family.generation(directory, settings, config)
    weights, origin = read_weights(directory)
    weights = _with_prefix(weights, family)
    config = family.with_weights(values, config, weights)
    problems = family.complete(weights, config)
    return build(
        config,
        generation,
        weights,
        family.weight_name,
        origin,
        problems,
        computed=family.computed(config),
    )


def _with_special_tokens(values: Values, settings: Values) -> Values:
    """With the special tokens of the generation settings, which take precedence in decoding."""
    names = ("decoder_start_token_id", "eos_token_id", "bos_token_id")
    tokens = {name: values[name] for name in names if name in values}
    tokens |= {name: settings[name] for name in names if settings.get(name) is not None}
    problems = []
    for name, value in tokens.items():
        if not isinstance(value, list):
            continue
        if not value or not all(type(token) is int for token in value):
            problems.append(f"{name}: expected a token id, found {value!r}")
        elif len(set(value)) > 1:
            kind = "end tokens" if name == "eos_token_id" else "tokens"
            problems.append(f"{name}: several {kind} are not supported, found {value}")
        else:
            tokens[name] = value[0]
    if problems:
        raise ConfigError(problems)
    return {**values, **tokens}


def _with_prefix(weights: Weights, family: Family) -> Weights:
    """With the prefix that names lack in a model saved without its head, such as `BartModel`."""
    has_prefix = family.weight_name("encoder.norm.gain").startswith(PREFIX)
    if not has_prefix or any(name.startswith(PREFIX) for name in weights):
        return weights
    return {
        PREFIX + name if name.startswith(BASE_PARTS) else name: weight
        for name, weight in weights.items()
    }
