"""Models of CTranslate2 -> reference models, without that library.

A directory holds `model.bin`, the vocabularies and, since version 6 of the format, `config.json`.
Read are encoder-decoder models for text (what it makes of OPUS-MT, M2M100, NLLB, BART, and models
of OpenNMT and fairseq) and Whisper, in whatever numbers they are stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    GenerationConfig,
    ModelConfig,
    Speech,
    Transformer,
)
from dragoman.reference_model.checkpoint import CONFIG_FILE
from dragoman.reference_model.config import Activation

from .building import build, measure
from .ctranslate2_file import MODEL_FILE, ModelFile, read_model_file
from .ctranslate2_vocabulary import text_tokens, whisper_tokens
from .ctranslate2_weights import (
    LOGITS_BIAS,
    PROJECTION,
    SOURCE_TABLE,
    TARGET_TABLE,
    biased,
    split_stacks,
    unsupported_options,
    weight_name,
)
from .family import Weights
from .json_files import read_json
from .m2m_100 import position_table
from .speech import prompted

TEXT, WHISPER = "TransformerSpec", "WhisperSpec"
REVISIONS: Mapping[str, range] = {
    TEXT: range(2, 8),
    "TransformerBase": range(2, 8),
    "TransformerBig": range(2, 8),
    WHISPER: range(1, 4),
}
"""The specifications that are read, and their revisions. The first of text was named as OpenNMT-tf
names its variables."""
HEADS = {"TransformerBig": 16}
"""Where they are not stated and not 8."""

ACTIVATIONS: Mapping[float, Activation] = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
OTHER_ACTIVATIONS: Mapping[float, str] = {4: "gelu_sigmoid", 5: "tanh", 6: "sigmoid"}

COMPUTED_POSITIONS = 1024
"""How many positions are computed where none are stored: CTranslate2 computes more as it goes."""

Fields = dict[str, Any]
"""Of a `ModelConfig`."""


LATEST_FIRST_TIME = 50
"""In steps of 0.02 s, as the published settings of all Whisper models say, which are not kept."""


def load_ctranslate2(directory: Path) -> Transformer:
    """Read a model into a model in evaluation mode, fp32.

    Weights that were quantized are what their stored numbers stand for. A model that starts from an
    embedding of zeros, as Marian's do, gets the token for it back that the conversion took away:
    the last of its vocabulary, never chosen.

    Raises:
        CheckpointError: files missing, unreadable or damaged, options that are not supported,
            weights missing, unknown, misshapen or not finite. All problems are listed at once.
        ConfigError: no `ModelConfig` can express it.
    """
    origin = directory / MODEL_FILE
    file = read_model_file(origin)
    known = REVISIONS.get(file.specification)
    if known is None or file.revision not in known:
        supported = ", ".join(f"{name} {r[0]} to {r[-1]}" for name, r in REVISIONS.items())
        found = f"{file.specification!r} in revision {file.revision}"
        raise CheckpointError(origin, [f"expected {supported}, found {found}"])
    path = directory / CONFIG_FILE
    values = read_json(path) if file.version >= 6 or path.is_file() else {}
    refused = unsupported_options(file)
    if values.get("multi_query_attention"):
        refused.append(f"unsupported option multi_query_attention ({CONFIG_FILE})")
    if refused:
        raise CheckpointError(origin, refused)
    reading = _Reading(directory, file, values, dict(file.weights), [])
    reading.problems.extend(split_stacks(reading.weights))
    fields, generation = _speech(reading) if file.specification == WHISPER else _text(reading)
    try:
        config = ModelConfig(**_architecture(reading) | fields)
    except ConfigError as error:
        raise ConfigError(reading.problems + error.problems) from error
    name = partial(weight_name, gated=config.gated_feed_forward)
    return build(config, generation, reading.weights, name, origin, reading.problems)


@dataclass(frozen=True)
class _Reading:
    """A model on its way: `weights` change until they are in the shapes of `Transformer`, and what
    is wrong goes to `problems`."""

    directory: Path
    file: ModelFile
    values: Fields
    weights: Weights
    problems: list[str]

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """Of a weight that others are measured by."""
        origin = self.directory / MODEL_FILE
        return measure(self.weights, {name: axes}, origin, self.problems)[0]

    def option(self, stack: str, name: str, default: float) -> int | float:
        """Of a stack or, in old revisions, of the model."""
        options = self.file.options
        return options.get(f"{stack}/{name}", options.get(name, default))

    def common(self, name: str, default: float) -> int | float:
        """An option that must be the same in both stacks."""
        # Whisper's encoder states none: it is what its decoder is.
        decoder = self.option("decoder", name, default)
        encoder = self.option(
            "encoder", name, decoder if self.file.specification == WHISPER else default
        )
        if encoder != decoder:
            self.problems.append(
                f"{name} must be equal in both stacks, found {encoder} and {decoder}"
            )
        return decoder

    def layers(self, stack: str) -> int:
        matches = (re.match(rf"{stack}/(layer_\d+)/", name) for name in self.weights)
        return len({match[1] for match in matches if match})


def _text(reading: _Reading) -> tuple[Fields, GenerationConfig]:
    weights = reading.weights
    if "encoder/embeddings/weight" in weights:  # as it was before there could be several
        weights[SOURCE_TABLE] = weights.pop("encoder/embeddings/weight")
    tokens = text_tokens(reading.directory, reading.file, reading.values)
    for table, size in ((SOURCE_TABLE, tokens.source_size), (TARGET_TABLE, tokens.target_size)):
        if (rows := reading.shape(table, 2)[0]) != size:
            reading.problems.append(
                f"{table} has {rows} rows, and the vocabulary {size} tokens: expected as many"
            )
    fields: Fields = {
        "start_token_id": tokens.start,
        "end_token_id": tokens.end,
        "pad_token_id": tokens.pad,
        "scale_embedding": _scale_tables(reading),
    }
    generation = GenerationConfig()
    if reading.option("decoder", "start_from_zero_embedding", 0):
        fields["start_token_id"] = start = len(weights[TARGET_TABLE])
        generation = GenerationConfig(suppressed_token_ids=(start,))
        _add_row_of_zeros(weights)
        if len(weights[SOURCE_TABLE]) > start:
            fields["pad_token_id"] = start
    d_model = reading.shape(TARGET_TABLE, 2)[1]
    for stack in ("encoder", "decoder"):
        name = f"{stack}/position_encodings/encodings"
        if name not in weights:
            weights[name] = position_table(1, COMPUTED_POSITIONS, d_model)
    fields["source_vocab_size"] = len(weights[SOURCE_TABLE])
    fields["tie_source_target"] = _merge(weights, SOURCE_TABLE, TARGET_TABLE)
    return fields, generation


def _speech(reading: _Reading) -> tuple[Fields, GenerationConfig]:
    tokens = whisper_tokens(reading.directory)
    fields: Fields = {
        "source_vocab_size": None,
        "feature_size": reading.shape("encoder/conv1/weight", 3)[1],
        "start_token_id": tokens.start,
        "end_token_id": tokens.end,
        "pad_token_id": tokens.end,
        "scale_embedding": _scale_tables(reading),
    }
    rows = reading.shape(TARGET_TABLE, 2)[0]

    def ids(name: str) -> tuple[int, ...]:
        found = reading.values.get(name) or []
        if not isinstance(found, list) or not all(type(i) is int and 0 <= i < rows for i in found):
            reading.problems.append(f"{name}: expected token ids in [0, {rows}), found {found}")
            return ()
        return tuple(sorted(set(found)))

    generation = GenerationConfig(
        suppressed_token_ids=ids("suppress_ids"),
        first_suppressed_token_ids=ids("suppress_ids_begin"),
    )
    tasks = {"transcribe": tokens.transcribe, "translate": tokens.translate}
    speech = Speech(
        languages=dict(tokens.languages),
        tasks={name: token for name, token in tasks.items() if token is not None},
        no_timestamps_token_id=tokens.no_timestamps,
        max_initial_timestamp_index=LATEST_FIRST_TIME,
        default_task=None if tokens.transcribe is None else "transcribe",
    )
    positions = reading.shape("decoder/position_encodings/encodings", 2)[0]
    return fields, prompted(generation, speech, positions)


def _architecture(reading: _Reading) -> Fields:
    """What the shapes of the weights and the options say."""
    weights, problems = reading.weights, reading.problems
    table = SOURCE_TABLE if TARGET_TABLE not in weights else TARGET_TABLE
    vocabulary, d_model = reading.shape(table, 2)
    heads = int(reading.common("num_heads", HEADS.get(reading.file.specification, 8)))
    sizes = {v for name, v in reading.file.options.items() if name.endswith("/head_dim")}
    if len(sizes) > 1:
        problems.append(f"head_dim must be equal everywhere, found {sorted(sizes)}")
    activation = reading.common("activation", 0)
    if activation not in ACTIVATIONS:
        problems.append(
            f"unsupported option activation: expected one of {', '.join(ACTIVATIONS.values())}, "
            f"found {OTHER_ACTIVATIONS.get(activation, activation)}"
        )
    biases = biased(weights)
    rms = "decoder/layer_0/ffn/layer_norm/beta" not in weights
    epsilon = reading.values.get("layer_norm_epsilon")
    return {
        "target_vocab_size": vocabulary,
        "encoder_layers": reading.layers("encoder"),
        "decoder_layers": reading.layers("decoder"),
        "d_model": d_model,
        "num_heads": heads,
        "d_head": int(max(sizes)) if sizes else None,
        "d_ff": reading.shape("decoder/layer_0/ffn/linear_0/weight", 2)[0],
        "activation": ACTIVATIONS.get(activation, "relu"),
        "gated_feed_forward": any("/ffn/linear_0_noact/" in name for name in weights),
        "norm_order": "pre" if reading.common("pre_norm", 1) else "post",
        "norm": "rms" if rms else "layer",
        "norm_bias": not rms,
        "norm_epsilon": (1e-6 if rms else 1e-5) if epsilon is None else epsilon,
        "final_norm": "decoder/layer_norm/gamma" in weights,
        "embedding_norm": "decoder/layernorm_embedding/gamma" in weights,
        "positions": "learned",
        "max_source_positions": reading.shape("encoder/position_encodings/encodings", 2)[0],
        "max_target_positions": reading.shape("decoder/position_encodings/encodings", 2)[0],
        "tie_target_output": _merge(weights, table, PROJECTION),
        **biases,
    }


def _merge(weights: Weights, name: str, other: str) -> bool:
    """Whether two tables are one; the other is left out then."""
    same = name in weights and other in weights and weights[name].equal(weights[other])
    if same:
        del weights[other]
    return same


def _scale_tables(reading: _Reading) -> bool:
    """Whether tokens are multiplied by sqrt(d_model) in both stacks. By what else they are
    multiplied, their tables are."""
    tables = {"encoder": SOURCE_TABLE, "decoder": TARGET_TABLE}
    if reading.file.specification == WHISPER:
        del tables["encoder"]
    usual = math.sqrt(reading.shape(TARGET_TABLE, 2)[1])
    scales = {table: _scale(reading, stack, usual) for stack, table in tables.items()}
    if all(math.isclose(scale, usual, rel_tol=1e-6) for scale in scales.values()):
        return True
    for table, scale in scales.items():
        if scale != 1:
            reading.weights[table] = reading.weights[table] * scale
    return False


def _scale(reading: _Reading, stack: str, usual: float) -> float:
    """A flag, or the number itself; once a property of the table."""
    options = reading.file.options
    before = options.get(f"{stack}/embeddings/multiply_by_sqrt_depth", 1)
    value = options.get(f"{stack}/scale_embeddings", before)
    if isinstance(value, float):
        return value
    return usual if value else 1.0


def _add_row_of_zeros(weights: Weights) -> None:
    """One more token, which is embedded as zeros: what decoding starts from."""
    names = [TARGET_TABLE, PROJECTION, LOGITS_BIAS]
    if weights[SOURCE_TABLE].equal(weights[TARGET_TABLE]):
        names.append(SOURCE_TABLE)
    for name in names:
        if name in weights:
            table = weights[name]
            weights[name] = torch.cat([table, table.new_zeros(1, *table.shape[1:])])
