"""A directory of CTranslate2 -> a reference model and its tokenizers.

Supported are Whisper and encoder-decoder text models (conversions of OPUS-MT, M2M100, NLLB, BART,
OpenNMT and fairseq models), in every data type of the format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dragoman.errors import shown
from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    GenerationConfig,
    ModelConfig,
    Transformer,
)
from dragoman.reference_model.config import Activation
from dragoman.settings.speech import SpeechTokens

from ...formats.contents import CTRANSLATE2, GENERATION
from ...formats.ctranslate2 import read_model_file
from ...formats.detection import CONFIG_FILE, CTRANSLATE2_FILE, GENERATION_FILE
from ...formats.json_files import Values, read_json, read_json_if_present
from ..checkpoint import Checkpoint, build
from ..generation import generation_config
from ..whisper import alignment_heads
from ..whisper import generation as whisper_generation
from .stored_model import (
    PROJECTION,
    SOURCE_TABLE,
    TARGET_TABLE,
    Fields,
    Specification,
    StoredModel,
    current_names,
    merge_equal,
    split_stacks,
    table_rows,
    unify_biases,
    unsupported_options,
    weight_name,
)
from .text import TEXT, old_settings
from .whisper import WHISPER

SPECIFICATIONS: Mapping[str, Specification] = {
    "": dataclasses.replace(TEXT, revisions=range(1, 8)),
    "TransformerSpec": TEXT,
    "TransformerBase": TEXT,
    "TransformerBig": dataclasses.replace(TEXT, num_heads=16),
    "WhisperSpec": WHISPER,
}
"""Specifications by their names in `model.bin`. TransformerSpec was called TransformerBase or
TransformerBig in old conversions of OpenNMT-tf, and had no name in the first ones."""

ACTIVATIONS: Mapping[float, Activation] = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
UNSUPPORTED_ACTIVATIONS: Mapping[float, str] = {4: "gelu_sigmoid", 5: "tanh", 6: "sigmoid"}
"""Activations by their number in the format."""


def read_ctranslate2(directory: Path, values: Values) -> Checkpoint:
    """Read a model and its tokenizers; `config.json` may be missing.

    Raises:
        CheckpointError, ConfigError: see `load_ctranslate2`.
        DragomanError: the tokenizers cannot be read.
    """
    stored = _begin(directory, values)
    model = _build(stored)
    find_tokenizers = stored.specification.find_tokenizers
    tokenizers = find_tokenizers(directory, stored.values, stored.rows)
    return Checkpoint(model, tokenizers, tuple(stored.notes))


def load_ctranslate2(directory: Path) -> Transformer:
    """Read a model in evaluation mode, fp32.

    Marian models start decoding from an embedding of zeros. The conversion removes its token; here
    it is added as the last token and is never generated.

    Raises:
        CheckpointError: files or weights are missing or damaged, or options are not supported. All
            problems are listed.
        ConfigError: no `ModelConfig` can express the model.
    """
    return _build(_begin(directory, read_json_if_present(directory / CONFIG_FILE)))


def _build(stored: StoredModel) -> Transformer:
    fields, rules = stored.specification.describe(stored)
    try:
        config = ModelConfig(**_architecture(stored) | fields)
    except ConfigError as error:
        raise ConfigError(stored.problems + error.problems) from error
    name = partial(weight_name, gated=config.gated_feed_forward)
    origin = stored.directory / CTRANSLATE2_FILE
    rules = dataclasses.replace(rules, alignment_heads=_alignment_heads(stored, config))
    rules = _with_settings(stored, config, rules)
    make = partial(Transformer, config, rules)
    return build(config, make, stored.weights, name, origin, stored.problems)


def _with_settings(
    stored: StoredModel, config: ModelConfig, rules: GenerationConfig
) -> GenerationConfig:
    """Read generation settings beside the model; missing ones have the model's own values."""
    path = stored.directory / GENERATION_FILE
    known = GENERATION.read - CTRANSLATE2.read
    if path.exists():
        stated, file = read_json(path), path.name
        stored.notes.extend(GENERATION.notes(file, stated))
    else:
        stated, file = {n: v for n, v in stored.values.items() if n in known}, CONFIG_FILE
    stated = {name: value for name, value in stated.items() if value is not None}
    if not stated:
        return rules
    start = stated.get("decoder_start_token_id", config.start_token_id)
    try:
        if start != config.start_token_id:
            expected = f"expected {config.start_token_id}, the model's, found {shown(start)}"
            raise ConfigError([f"decoder_start_token_id: {expected}"])
        if rules.speech is not None:
            stated = _speech_settings(rules, rules.speech, stored.values) | stated
            return whisper_generation(stored.directory, stated, config, stored.notes)
        limits = "max_new_tokens" in stated or "max_length" in stated
        unlimited = {} if limits else {"max_new_tokens": config.max_target_positions}
        read = generation_config(stated | unlimited, config, stored.notes)
    except ConfigError as error:
        raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from error
    suppressed = {*read.suppressed_token_ids, *rules.suppressed_token_ids}
    return dataclasses.replace(
        read,
        suppressed_token_ids=tuple(sorted(suppressed)),
        alignment_heads=rules.alignment_heads,
        max_new_tokens=read.max_new_tokens if limits else None,
    )


def _speech_settings(
    rules: GenerationConfig, speech: SpeechTokens, values: Values
) -> dict[str, object]:
    return {
        "suppress_tokens": list(rules.suppressed_token_ids),
        "begin_suppress_tokens": list(rules.first_suppressed_token_ids),
        "is_multilingual": bool(speech.languages),
        "lang_to_id": {f"<|{code}|>": token for code, token in speech.languages.items()},
        "task_to_id": dict(speech.tasks),
        "no_timestamps_token_id": speech.no_timestamps_token_id,
        "max_initial_timestamp_index": speech.max_initial_timestamp_index,
        "alignment_heads": values.get("alignment_heads"),
    }


def _alignment_heads(stored: StoredModel, config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Return the heads that align words, which Whisper lists and CTranslate2 averages otherwise."""
    if stored.specification is WHISPER:
        return alignment_heads(stored.values, config, stored.problems, stored.notes)
    layer = int(stored.option("decoder", "alignment_layer", -1)) % config.decoder_layers
    # The default of CTranslate2 is 1; an explicit 0 means all heads.
    count = int(stored.option("decoder", "alignment_heads", 1)) or config.num_heads
    return tuple((layer, head) for head in range(min(count, config.num_heads)))


def _begin(directory: Path, values: Values) -> StoredModel:
    origin = directory / CTRANSLATE2_FILE
    file = read_model_file(origin)
    specification = SPECIFICATIONS.get(file.specification)
    if specification is None or file.revision not in specification.revisions:
        supported = ", ".join(
            f"{name} {known.revisions[0]} to {known.revisions[-1]}"
            for name, known in SPECIFICATIONS.items()
            if name
        )
        found = f"{shown(file.specification)} in revision {file.revision}"
        raise CheckpointError(origin, [f"expected {supported}, found {found}"])
    if file.version < 6:
        values = {**old_settings(file), **values}
    elif not values:
        values = read_json(directory / CONFIG_FILE)  # raises if the file is missing
    unsupported = unsupported_options(file)
    if values.get("multi_query_attention"):
        unsupported.append(f"unsupported option multi_query_attention ({CONFIG_FILE})")
    if unsupported:
        raise CheckpointError(origin, unsupported)
    weights = dict(file.weights)
    if specification is not WHISPER:
        weights = current_names(weights, file.revision)
    rows = table_rows(weights)
    problems = split_stacks(weights)
    notes = CTRANSLATE2.notes(CONFIG_FILE, values, GENERATION.read | GENERATION.harmless)
    return StoredModel(directory, file, specification, values, rows, weights, problems, notes)


def _architecture(stored: StoredModel) -> Fields:
    weights, problems = stored.weights, stored.problems
    table = SOURCE_TABLE if TARGET_TABLE not in weights else TARGET_TABLE
    vocab_size, d_model = stored.shape(table, 2)
    heads = stored.common_option("num_heads", stored.specification.num_heads)
    head_sizes = {v for name, v in stored.file.options.items() if name.endswith("/head_dim")}
    if len(head_sizes) > 1:
        problems.append(f"head_dim must be equal everywhere, found {sorted(head_sizes)}")
    activation = stored.common_option("activation", 0)
    if activation not in ACTIVATIONS:
        problems.append(
            f"unsupported option activation: expected one of {', '.join(ACTIVATIONS.values())}, "
            f"found {UNSUPPORTED_ACTIVATIONS.get(activation, activation)}"
        )
    biases = unify_biases(weights)
    rms = "decoder/layer_0/ffn/layer_norm/beta" not in weights
    epsilon = stored.values.get("layer_norm_epsilon")
    return {
        "target_vocab_size": vocab_size,
        "encoder_layers": stored.layers("encoder"),
        "decoder_layers": stored.layers("decoder"),
        "d_model": d_model,
        "num_heads": stored.count("num_heads", heads),
        "d_head": stored.count("head_dim", max(head_sizes)) if head_sizes else None,
        "d_ff": stored.shape("decoder/layer_0/ffn/linear_0/weight", 2)[0],
        "activation": ACTIVATIONS.get(activation, "relu"),
        "gated_feed_forward": any("/ffn/linear_0_noact/" in name for name in weights),
        "norm_order": "pre" if stored.common_option("pre_norm", 1) else "post",
        "norm": "rms" if rms else "layer",
        "norm_bias": not rms,
        "norm_epsilon": (1e-6 if rms else 1e-5) if epsilon is None else epsilon,
        "final_norm": "decoder/layer_norm/gamma" in weights,
        "embedding_norm": "decoder/layernorm_embedding/gamma" in weights,
        "positions": "learned",
        "max_source_positions": stored.shape("encoder/position_encodings/encodings", 2)[0],
        "max_target_positions": stored.shape("decoder/position_encodings/encodings", 2)[0],
        "tie_target_output": merge_equal(weights, table, PROJECTION),
        **biases,
    }
