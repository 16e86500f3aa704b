"""A Hugging Face directory -> a reference model and its tokenizers, without `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dragoman.errors import shown
from dragoman.reference_model import (
    ConfigError,
    EncoderModel,
    GenerationConfig,
    ModelConfig,
    ReferenceModel,
    Transformer,
    make_model,
)
from dragoman.reference_model.checkpoint import check_positions
from dragoman.reference_model.settings import all_are

from ..formats.adapter_config import AdapterConfig, with_own
from ..formats.adapters import BaseLayout, merge_adapters
from ..formats.contents import CONFIG, GENERATION, check_config
from ..formats.detection import CONFIG_FILE, GENERATION_FILE, unknown_model_type
from ..formats.json_files import Values, read_json
from ..formats.tensor_files import read_weights
from ..tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind, choose_kind
from . import ENCODER_FAMILIES, FAMILIES
from .checkpoint import Checkpoint, build
from .encoders.loading import read_encoder
from .family import Family

PREFIX = "model."
GPT2_PREFIX = "transformer."
BASE_PARTS = ("shared.", "encoder.", "decoder.")
"""Beginnings of weight names after the prefix, in families with a prefix."""


def read_hugging_face(
    directory: Path, values: Values, adapters: Sequence[AdapterConfig] = ()
) -> Checkpoint:
    """Read a model, with adapters merged into its weights in this order, and its tokenizers."""
    encoder = ENCODER_FAMILIES.get(str(values.get("model_type")))
    if encoder is not None:
        return read_encoder(directory, values, encoder, tokenizer_kinds(), adapters=adapters)
    model, notes = _load(directory, values, adapters)
    family = _family_of(values)
    source, target = model.config.source_vocab_size, model.config.target_vocab_size
    tokenizers = find_hugging_face_tokenizers(
        directory,
        family,
        values,
        source_vocab_size=source or target,
        target_vocab_size=target or source or 0,
    )
    return Checkpoint(model, tokenizers, notes, family.summarizes)


def tokenizer_kinds() -> tuple[TokenizerKind, ...]:
    """Return the kinds of tokenizers of all families."""
    of_families = [family.tokenizers for family in FAMILIES.values()]
    of_families += [family.tokenizers for family in ENCODER_FAMILIES.values()]
    return tuple(kind for kinds in of_families for kind in kinds)


def load_hugging_face(directory: Path) -> Transformer:
    """Read an encoder-decoder in evaluation mode, fp32."""
    model = _load(directory, read_json(directory / CONFIG_FILE))[0]
    if not isinstance(model, Transformer):
        found = "one with a head" if isinstance(model, EncoderModel) else "a decoder-only one"
        raise ConfigError([f"expected an encoder-decoder model, found {found}"])
    return model


def find_hugging_face_tokenizers(
    directory: Path,
    family: Family,
    values: Values,
    *,
    source_vocab_size: int,
    target_vocab_size: int,
) -> TokenizerFiles | None:
    """Find the tokenizers of a directory; None if there are none.

    The sizes of the vocabularies are equal if the input is not text.
    """
    checkpoint = TokenizerCheckpoint(directory, values, source_vocab_size, target_vocab_size)
    return choose_kind(checkpoint, family.tokenizers, tokenizer_kinds()).read(checkpoint)


def _family_of(values: Values) -> Family:
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError([unknown_model_type(model_type)])
    return FAMILIES[model_type]


def _load(
    directory: Path, values: Values, adapters: Sequence[AdapterConfig] = ()
) -> tuple[ReferenceModel, tuple[str, ...]]:
    family, notes = _family_of(values), list[str]()
    classifier, problems = _classifier(values, family)
    problems += check_config(values, family.settings)
    if problems:
        raise ConfigError([f"{CONFIG_FILE}: {problem}" for problem in problems])
    notes += CONFIG.notes(CONFIG_FILE, values, family.settings)
    if classifier is None:
        config, generation = _generating(directory, values, family, notes)
    else:
        config, generation = classifier(values), None
        check_positions(config)
    weights, origin = read_weights(directory)
    name_of = _naming(family)
    if not any(name.startswith(PREFIX) for name in weights):  # saved without its head
        weights = {name_of(name): weight for name, weight in weights.items()}
    layout = BaseLayout(name_of, family.tables, family.transposed)
    if merge_adapters(with_own(directory, adapters), weights, layout, notes):
        config = config.replace(tie_target_output=False)
    config = family.adjust_config(values, config, weights)
    problems = family.convert_weights(weights, config)
    model = build(
        config,
        partial(make_model, config, generation),
        weights,
        family.weight_name,
        origin,
        problems,
        computed=family.computed_weights(config),
        notes=notes,
    )
    return model, tuple(notes)


GENERATES, CLASSIFIES = "ForConditionalGeneration", "ForSequenceClassification"
OTHER_HEADS = ("Classification", "QuestionAnswering")
"""Endings of the names of Hugging Face's classes."""


def _classifier(
    values: Values, family: Family
) -> tuple[Callable[[Values], ModelConfig] | None, list[str]]:
    """Return the family's `classifier` if `config.json` names one, and problems with its class."""
    stated = values.get("architectures")
    name = str(stated[0]) if isinstance(stated, list) and stated else ""
    classifies = family.classifier is not None and name.endswith(CLASSIFIES)
    if classifies or not (family.has_encoder and name.endswith(OTHER_HEADS)):
        return family.classifier if classifies else None, []
    known = [GENERATES, *([] if family.classifier is None else [CLASSIFIES])]
    prefix = name[: name.rfind("For")]
    expected = " or ".join(prefix + ending for ending in known)
    return None, [f"architectures: expected {expected}, found {name}"]


def _generating(
    directory: Path, values: Values, family: Family, notes: list[str]
) -> tuple[ModelConfig, GenerationConfig]:
    """Read the configuration and the generation settings of a model; add notes."""
    settings, file = _settings(directory, values, family, notes)
    if file != CONFIG_FILE:
        notes += GENERATION.notes(file, settings)
    values = _with_special_tokens(values, settings)
    config = family.config(values)
    check_positions(config)
    try:
        generation = family.generation(directory, settings, config, notes)
    except ConfigError as error:
        raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from error
    return _with_positions(config, generation, family, notes), generation


def _settings(
    directory: Path, values: Values, family: Family, notes: list[str]
) -> tuple[Values, str]:
    path = directory / GENERATION_FILE
    has_file = path.exists()
    settings, file = (read_json(path), path.name) if has_file else (values, CONFIG_FILE)
    if not has_file and values.get("force_bos_token_to_be_generated"):
        # Older BART checkpoints lack `forced_bos_token_id`.
        settings = {**values, "forced_bos_token_id": values.get("bos_token_id")}
    if settings.get("eos_token_id") in (None, []):
        stated = values.get("eos_token_id")
        add = f'; config.json has {stated}: add "eos_token_id": {stated} there' if stated else ""
        notes.append(
            f"{file} has no eos_token_id: outputs end at their limit only, as those of Hugging "
            f"Face's generate{add}"
        )
        settings = {**settings, "eos_token_id": []}
    if family.has_encoder and settings.get("decoder_start_token_id") is None:
        if has_file and settings.get("bos_token_id") is None:
            raise ConfigError(
                [
                    f"{file}: expected decoder_start_token_id or bos_token_id, found "
                    "neither; Hugging Face's generate refuses it, too"
                ]
            )
        settings = {**settings, "decoder_start_token_id": settings.get("bos_token_id")}
    return settings, file


def _with_special_tokens(values: Values, settings: Values) -> Values:
    """Add the special tokens of the generation settings, which take precedence in decoding."""
    names = ("decoder_start_token_id", "eos_token_id", "bos_token_id")
    tokens = {name: values[name] for name in names if name in values}
    tokens |= {name: settings[name] for name in names if settings.get(name) not in (None, [])}
    problems = []
    for name, value in tokens.items():
        if not isinstance(value, list):
            continue
        if not value or not all_are(int, value):
            problems.append(f"{name}: expected a token id, found {shown(value)}")
        elif len(set(value)) > 1 and name != "eos_token_id":
            problems.append(f"{name}: several tokens are not supported, found {shown(value)}")
        else:
            tokens[name] = value[0]
    if problems:
        raise ConfigError(problems)
    return {**values, **tokens}


def _with_positions(
    config: ModelConfig, generation: GenerationConfig, family: Family, notes: list[str]
) -> ModelConfig:
    """Extend the target positions to the number that generation needs, if they are computed."""
    limit, positions = generation.max_new_tokens or 0, config.max_target_positions
    if limit <= positions:
        return config
    if family.positions_grow:
        grown = config.replace(max_target_positions=limit)
        check_positions(grown)
        return grown
    notes.append(
        f"outputs end after {positions} tokens, as many as the model has positions; the "
        f"generation settings allow {limit}"
    )
    return config


def _naming(family: Family) -> Callable[[str], str]:
    if family.weight_name("decoder.norm.gain").startswith(PREFIX):
        return lambda name: PREFIX + name if name.startswith(BASE_PARTS) else name
    return lambda name: name.removeprefix(GPT2_PREFIX)
