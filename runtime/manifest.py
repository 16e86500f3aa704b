"""The manifest: what a bundle says of itself. Plain data, the same on every backend.

Schema version 1. A change that an older reader would misread takes the next number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.errors import DragomanError

from .audio import LogMel
from .engines import Engines
from .languages import Languages, SourceTemplate
from .plain_data import Problems, from_plain, to_plain
from .records import Parity, PassRecord
from .rules import Rules
from .speech.facts import Speech

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]
Target = Literal["neutral", "cpu", "tensorrt-rtx", "tensorrt"]
TENSORRT_TARGETS: frozenset[Target] = frozenset({"tensorrt-rtx", "tensorrt"})
DataType = Literal["float32", "float16", "bfloat16", "int64", "int32", "bool"]
Role = Literal[
    "source",
    "source_mask",
    "cross_key",
    "cross_value",
    "token",
    "position",
    "past_key",
    "past_value",
    "logits",
    "next_token",
    "next_log_probability",
    "present_key",
    "present_value",
]
LAYERED_ROLES: frozenset[Role] = frozenset(
    {"cross_key", "cross_value", "past_key", "past_value", "present_key", "present_value"}
)
ENCODER_INPUTS: tuple[Role, ...] = ("source", "source_mask")
AUDIO_ENCODER_INPUTS: tuple[Role, ...] = ("source",)
"""Every frame of a window is attended to, silence too."""
ENCODER_OUTPUTS: tuple[Role, ...] = ("cross_key", "cross_value")
DECODER_INPUTS: tuple[Role, ...] = (
    "token",
    "position",
    "source_mask",
    "cross_key",
    "cross_value",
    "past_key",
    "past_value",
)
DECODER_OUTPUTS: tuple[Role, ...] = (
    "logits",
    "next_token",
    "next_log_probability",
    "present_key",
    "present_value",
)


class BundleError(DragomanError):
    """A bundle that cannot be used; lists every problem found."""

    def __init__(self, place: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{place}: " + "; ".join(problems))


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph. A dimension is a number, or the name of a dynamic axis:
    batch, source, query, capacity."""

    name: str
    role: Role
    dtype: DataType
    shape: tuple[int | str, ...]
    layer: int | None = None


@dataclass(frozen=True)
class GraphSpec:
    """A graph: `file` is an ONNX file, or the engine made of one."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def map(self, change: Callable[[TensorSpec], TensorSpec]) -> GraphSpec:
        """The graph with every tensor changed."""
        return GraphSpec(
            self.file, tuple(map(change, self.inputs)), tuple(map(change, self.outputs))
        )


@dataclass(frozen=True)
class FileRecord:
    """A file of the bundle: its path inside it, its size in bytes, its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ModelFacts:
    """What the decoding loop needs to know of the model."""

    source_vocab_size: int | None
    """None: the source is features of audio, not tokens."""
    target_vocab_size: int
    decoder_layers: int
    num_heads: int
    head_size: int
    max_source_positions: int
    max_target_positions: int
    pad_token_id: int
    start_token_id: int
    end_token_id: int


@dataclass(frozen=True)
class Tokenizers:
    """How texts become source tokens, and target tokens texts: a file for each side, in the format
    of the `tokenizers` library or, with a vocabulary, a SentencePiece model."""

    source: str | None
    """None: the model does not take texts."""
    target: str
    source_vocabulary: str | None = None
    """The token ids of the pieces of a SentencePiece model: `codecs.pieces.Vocabulary` in JSON."""
    target_vocabulary: str | None = None
    template: SourceTemplate | None = None
    """None: the file of the source says itself which special tokens surround a text."""

    @property
    def files(self) -> tuple[str, ...]:
        """All files, each once."""
        names = (self.source, self.target, self.source_vocabulary, self.target_vocabulary)
        return tuple(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class Manifest:
    schema_version: int
    name: str
    target: Target
    """neutral: standard ONNX operators, for any backend that reads ONNX; cpu: those fastest in ONNX
    Runtime on a processor; tensorrt-rtx and tensorrt: engines of these packages."""
    precision: Precision
    model: ModelFacts
    architecture: dict[str, Any]
    """The full configuration of the model as its framework states it; for people."""
    default_max_new_tokens: int
    encoder: GraphSpec
    decoder: GraphSpec
    tokenizers: Tokenizers | None
    files: tuple[FileRecord, ...]
    tool_versions: dict[str, str]
    languages: Languages | None = None
    """None: the model is not told of any language."""
    parity: Parity | None = None
    """None: not verified."""
    rules: Rules = field(default_factory=Rules)
    """Of greedy decoding, beyond the argmax. Of a speech model with languages, the prompt is one of
    those that `speech` makes; parity is checked with it."""
    audio: LogMel | None = None
    """How audio becomes the source; None: the source is tokens."""
    speech: Speech | None = None
    """What prompts of a speech model are made of."""
    passes: tuple[PassRecord, ...] = ()
    """What made the graphs of this target, in order."""
    engines: Engines | None = None
    """None: graphs, not engines."""

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=1, allow_nan=False) + "\n"


def manifest_from_json(text: str, place: str) -> Manifest:
    """Read and check a manifest.

    Raises:
        BundleError: it is not JSON, of a newer schema, or not as the schema says; all at once.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number too long
        raise BundleError(place, [f"expected JSON: {error}"]) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BundleError(
            place,
            [
                f"schema version {version} is newer than {SCHEMA_VERSION}, the newest that this "
                "Dragoman reads: upgrade with pip install --upgrade dragoman"
            ],
        )
    problems = Problems()
    manifest = from_plain(Manifest, data, "manifest", problems)
    if manifest is not None:
        problems.extend(_inconsistencies(manifest))
    if manifest is None or problems:
        raise BundleError(place, problems)
    return manifest


def _inconsistencies(manifest: Manifest) -> list[str]:
    problems = []
    layers = manifest.model.decoder_layers
    if layers > len(manifest.decoder.inputs):
        return [f"model.decoder_layers: {layers}, but decoder inputs for fewer layers"]
    if manifest.schema_version != SCHEMA_VERSION:
        problems.append(
            f"schema_version: expected {SCHEMA_VERSION}, found {manifest.schema_version}"
        )
    model = manifest.model
    for name, value in to_plain(model).items():
        if value is not None and value < (0 if name.endswith("_id") else 1):
            problems.append(f"model.{name}: out of range, found {value}")
    source = model.source_vocab_size or model.target_vocab_size
    for name, value, vocabulary in (
        ("pad_token_id", model.pad_token_id, min(source, model.target_vocab_size)),
        ("start_token_id", model.start_token_id, model.target_vocab_size),
        ("end_token_id", model.end_token_id, model.target_vocab_size),
    ):
        if value >= vocabulary:
            problems.append(
                f"model.{name}: expected less than {vocabulary}, the vocabulary, found {value}"
            )
    problems += [f"rules.{p}" for p in manifest.rules.problems(model.target_vocab_size)]
    longest = model.max_target_positions - len(manifest.rules.prompt)
    if not 1 <= manifest.default_max_new_tokens <= longest:
        problems.append(
            f"default_max_new_tokens: expected 1 to {longest} "
            f"(max_target_positions{', less the prompt' if manifest.rules.prompt else ''}), "
            f"found {manifest.default_max_new_tokens}"
        )
    if manifest.engines is not None:
        problems += _wrong_engines(manifest, manifest.engines)
    recorded = {file.path for file in manifest.files}
    named = [manifest.encoder.file, manifest.decoder.file]
    if manifest.tokenizers is not None:
        named += manifest.tokenizers.files
        problems += _wrong_tokenizers(manifest, manifest.tokenizers)
    if manifest.languages is not None:
        problems += _wrong_languages(manifest, manifest.languages)
    problems += [
        f"file {name} is used but not listed in files" for name in named if name not in recorded
    ]
    problems += _wrong_speech(manifest)
    encoder_inputs = AUDIO_ENCODER_INPUTS if model.source_vocab_size is None else ENCODER_INPUTS
    for graph, tensors, roles in (
        ("encoder inputs", manifest.encoder.inputs, encoder_inputs),
        ("encoder outputs", manifest.encoder.outputs, ENCODER_OUTPUTS),
        ("decoder inputs", manifest.decoder.inputs, DECODER_INPUTS),
        ("decoder outputs", manifest.decoder.outputs, DECODER_OUTPUTS),
    ):
        problems += _wrong_roles(graph, tensors, roles, model.decoder_layers)
    return problems


def _wrong_speech(manifest: Manifest) -> list[str]:
    model, audio, speech = manifest.model, manifest.audio, manifest.speech
    is_speech = model.source_vocab_size is None
    problems = [
        f"{name}: expected {'one' if is_speech else 'none'}, as model.source_vocab_size is "
        f"{model.source_vocab_size}, found {'none' if value is None else 'one'}"
        for name, value in (("audio", audio), ("speech", speech))
        if (value is not None) != is_speech
    ]
    if speech is not None:
        problems += [f"speech.{p}" for p in speech.problems(model.target_vocab_size)]
    if audio is None:
        return problems
    wrong = [f"audio.{p}" for p in audio.problems()]
    if not wrong:
        found = (audio.bins, audio.frames)
        wrong += [
            f"audio: its windows have shape {list(found)}, but {tensor.name} has "
            f"{list(tensor.shape[1:])}"
            for tensor in manifest.encoder.inputs
            if tensor.role == "source" and tensor.shape[1:] != found
        ]
    return problems + wrong


def _wrong_tokenizers(manifest: Manifest, tokenizers: Tokenizers) -> list[str]:
    problems = []
    template = tokenizers.template
    if tokenizers.source_vocabulary is not None and template is None:
        problems.append("tokenizers.template: expected one beside source_vocabulary, found none")
    if template is not None and template.has_language and manifest.languages is None:
        problems.append("tokenizers.template: has a source language, but the model no languages")
    known = manifest.model.source_vocab_size or 0
    for token in (*template.prefix, *template.suffix) if template else ():
        if isinstance(token, int) and not 0 <= token < known:
            problems.append(f"tokenizers.template: expected ids in [0, {known}), found {token}")
    return problems


def _wrong_languages(manifest: Manifest, languages: Languages) -> list[str]:
    known = manifest.model.target_vocab_size
    known = min(manifest.model.source_vocab_size or known, known)
    problems = [
        f"languages.tokens.{code}: expected an id in [0, {known}), found {token}"
        for code, token in languages.tokens.items()
        if not 0 <= token < known
    ]
    for name in ("default_source", "default_target"):
        code = getattr(languages, name)
        if code is not None and code not in languages.tokens:
            problems.append(f"languages.{name}: expected one of languages.tokens, found {code!r}")
    return problems


def _wrong_engines(manifest: Manifest, engines: Engines) -> list[str]:
    problems = []
    if manifest.target not in TENSORRT_TARGETS:
        problems.append(f"engines: expected none for target {manifest.target}")
    if not engines.profiles:
        problems.append("engines.profiles: expected at least one, found none")
    for index, profile in enumerate(engines.profiles):
        for name, found in (("batch", profile.batch), ("source", profile.source)):
            if not found.in_order:
                problems.append(
                    f"engines.profiles[{index}].{name}: expected 1 <= smallest <= best <= largest"
                )
    if not 1 <= engines.capacity <= manifest.model.max_target_positions:
        problems.append(
            f"engines.capacity: expected 1 to {manifest.model.max_target_positions}, the positions "
            f"of the model, found {engines.capacity}"
        )
    return problems


def _wrong_roles(
    graph: str, tensors: tuple[TensorSpec, ...], roles: tuple[Role, ...], layers: int
) -> list[str]:
    expected = {
        (role, layer)
        for role in roles
        for layer in (range(layers) if role in LAYERED_ROLES else [None])
    }
    found = [(tensor.role, tensor.layer) for tensor in tensors]
    problems = [
        f"{graph}: no tensor with {_slot(s)}" for s in sorted(expected - set(found), key=str)
    ]
    problems += [f"{graph}: unexpected tensor with {_slot(s)}" for s in set(found) - expected]
    problems += [
        f"{graph}: two tensors with {_slot(s)}" for s in {s for s in found if found.count(s) > 1}
    ]
    return problems


def _slot(slot: tuple[Role, int | None]) -> str:
    role, layer = slot
    return f"role {role}" if layer is None else f"role {role}, layer {layer}"
