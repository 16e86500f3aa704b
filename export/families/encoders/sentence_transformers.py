"""A directory of sentence-transformers: an encoder, and the modules that make its embeddings.

`modules.json` lists the modules in order: Transformer (a Hugging Face directory), Pooling, then any
of Dense, LayerNorm and Normalize (Reimers & Gurevych 2019). A cross-encoder is a Transformer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from tokenizers import Tokenizer, normalizers

from dragoman.errors import shown
from dragoman.files.regular_files import SETTINGS_BYTES, FileError
from dragoman.files.strict_json import read_json as read_any_json
from dragoman.files.text_lines import printable
from dragoman.reference_model import CheckpointError, ConfigError, HeadConfig
from dragoman.reference_model.head_config import DenseActivation, EmbeddingLayer, Pooling
from dragoman.reference_model.settings import all_are
from dragoman.runtime.format.texts import Prompts

from ...formats.adapter_config import AdapterConfig, refuse_alone
from ...formats.contents import (
    DENSE,
    LAYER_NORM,
    NORMALIZE,
    SENTENCE_BERT,
    SENTENCE_TRANSFORMERS,
    SETTINGS_FILES,
    KnownSettings,
    refuse_broken_links,
)
from ...formats.contents import POOLING as POOLING_KEYS
from ...formats.detection import CONFIG_FILE, MODULES_FILE
from ...formats.json_files import Values, read_json, read_json_if_present
from ...formats.tensor_files import Weights, read_weights
from ...tokenizers import TokenizerFiles, TokenizerKind
from ...tokenizers.settings import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from .. import ENCODER_FAMILIES
from ..checkpoint import Checkpoint
from .loading import read_encoder

EXPECTED_MODULES = "Transformer, Pooling and any of Dense, LayerNorm and Normalize"


POOLING: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Poolings by the flags that preceded the setting `pooling_mode`, in the order of their vectors."""

ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
"""Activations by the names of PyTorch's classes."""

MOST_POOLINGS = 12
"""The most vectors of an embedding that are concatenated, each mode twice."""

FEATURE = "sentence_embedding"
"""The feature that a module reads and writes by default."""
LIBRARY_FILE = "config_sentence_transformers.json"


class Module(NamedTuple):
    """An entry of modules.json."""

    kind: str
    directory: Path


def read_sentence_transformers(
    directory: Path, all_kinds: tuple[TokenizerKind, ...], adapters: Sequence[AdapterConfig] = ()
) -> Checkpoint:
    """Read an encoder and the modules that make its embeddings."""
    modules = [module for module in read_modules(directory) if module.kind != "Dropout"]
    kinds = [module.kind for module in modules]
    library = read_json_if_present(directory / LIBRARY_FILE)
    notes = SENTENCE_TRANSFORMERS.notes(LIBRARY_FILE, library)
    if kinds == ["Transformer"] and library.get("model_type") == "CrossEncoder":
        read = _cross_encoder(directory, modules[0].directory, library, all_kinds, adapters)
        return replace(read, notes=(*read.notes, *notes))
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= LAYERS.keys():
        found = printable(", ".join(kinds)) or "none"
        raise CheckpointError(
            directory / MODULES_FILE,
            [f"expected the modules {EXPECTED_MODULES}, in this order, found {found}"],
        )
    transformer, pooling = modules[0].directory, modules[1].directory
    prompts = _prompts(directory / LIBRARY_FILE, library)
    head_weights: Weights = {}
    layers: list[EmbeddingLayer] = []
    modes = _pooling(pooling, prompts, notes)
    for module in modules[2:]:
        layer, weights = LAYERS[module.kind](module.directory, notes)
        head_weights |= {
            f"head.after_pooling.{len(layers)}.{name}": w for name, w in weights.items()
        }
        layers.append(layer)
    settings, path = _settings(transformer, "feature-extraction", "last_hidden_state", notes)
    values = _configuration(transformer)
    family = ENCODER_FAMILIES[_model_type(values)]
    head = HeadConfig(task="embedding", pooling=modes, after_pooling=tuple(layers))
    width = values.get(family.fields["d_model"])
    size = head.embedding_size(width) if type(width) is int else None
    kept = _kept(directory / LIBRARY_FILE, library, size)
    checkpoint = read_encoder(
        transformer,
        values,
        family,
        all_kinds,
        head=replace(head, truncate_dim=kept),
        longest=_longest(settings, path, transformer),
        head_weights=head_weights,
        adapters=adapters,
    )
    tokenizers = checkpoint.tokenizers
    if settings.get("do_lower_case") and tokenizers is not None:
        tokenizers = _lower_cased(tokenizers)
    if tokenizers is not None and any(prompts.texts.values()):
        tokenizers = replace(tokenizers, prompts=prompts)
    return Checkpoint(checkpoint.model, tokenizers, (*checkpoint.notes, *notes))


def _cross_encoder(
    directory: Path,
    transformer: Path,
    library: Values,
    all_kinds: tuple[TokenizerKind, ...],
    adapters: Sequence[AdapterConfig],
) -> Checkpoint:
    path = directory / LIBRARY_FILE
    prompts = _prompts(path, library)
    if prompts.before():
        raise CheckpointError(
            path, [f"default_prompt_name: pairs take no prompts, found {shown(prompts.default)}"]
        )
    notes: list[str] = []
    settings, file = _settings(transformer, "sequence-classification", "logits", notes)
    values = _configuration(transformer)
    stated = {"activation_fn": library.get("activation_fn")}
    if stated["activation_fn"] is not None or "sentence_transformers" not in values:
        values = {**values, "sentence_transformers": stated}
    read = read_encoder(
        transformer,
        values,
        ENCODER_FAMILIES[_model_type(values)],
        all_kinds,
        longest=_longest(settings, file, transformer),
        adapters=adapters,
    )
    return replace(read, notes=(*read.notes, *notes))


def _configuration(transformer: Path) -> Values:
    if not (transformer / CONFIG_FILE).exists():
        refuse_alone(transformer)
    return read_json(transformer / CONFIG_FILE)


def read_modules(directory: Path) -> list[Module]:
    """Read the modules that a directory lists."""
    path = directory / MODULES_FILE
    try:
        entries = read_any_json(path, limit=SETTINGS_BYTES)
        modules = [
            Module(entry["type"].rpartition(".")[2], directory / entry["path"]) for entry in entries
        ]
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error
    except (AttributeError, KeyError, TypeError) as error:
        expected = "expected a list of modules, each a type and a path"
        raise CheckpointError(path, [expected]) from error
    for module in modules:
        if not _is_within(directory, module.directory):
            found = printable(str(module.directory))
            raise CheckpointError(path, [f"expected paths within the directory, found {found}"])
        refuse_broken_links(module.directory)
    return modules


def _is_within(directory: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError, ValueError):  # invalid name, or circular links
        return False


def _model_type(values: Values) -> str:
    found = values.get("model_type")
    if not isinstance(found, str) or found not in ENCODER_FAMILIES:
        known = ", ".join(ENCODER_FAMILIES)
        raise ConfigError([f"model_type: expected one of {known}, found {shown(found)}"])
    return found


def _settings(
    transformer: Path, task: str, output: str, notes: list[str]
) -> tuple[Values, Path | None]:
    """Read the settings of the module Transformer, with their file, if there is one.

    They may state the task and the output of the module.
    """
    paths = (transformer / name for name in SETTINGS_FILES)
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return {}, None
    values = read_json(path)
    notes += SENTENCE_BERT.notes(path.name, values)
    problems = SENTENCE_BERT.unsupported(values)
    if values.get("transformer_task") not in (None, task):
        problems.append(
            f"transformer_task: expected {task}, found {shown(values['transformer_task'])}"
        )
    modality = values.get("modality_config") or {}
    text = modality.get("text", {}) if isinstance(modality, dict) else modality
    expected = {"method": "forward", "method_output_name": output}
    if modality and text != expected:
        problems.append(f"modality_config: expected {expected} for text, found {shown(text)}")
    if problems:
        raise CheckpointError(path, problems)
    return values, path


def _longest(settings: Values, path: Path | None, transformer: Path) -> int | None:
    longest = settings.get("max_seq_length")
    if path is None or longest is None:
        tokenizer = read_json_if_present(transformer / TOKENIZER_CONFIG_FILE)
        longest = tokenizer.get("model_max_length")  # 1e30: unlimited
        return longest if type(longest) is int and longest > 0 else None
    if type(longest) is int and longest > 0:
        return longest
    raise CheckpointError(path, [f"max_seq_length: expected a number, found {shown(longest)}"])


def _pooling(directory: Path, prompts: Prompts, notes: list[str]) -> tuple[Pooling, ...]:
    path = directory / CONFIG_FILE
    values = read_json(path)
    notes += POOLING_KEYS.notes(f"{directory.name}/{CONFIG_FILE}", values)
    stated = values.get("pooling_mode")
    if stated is None:
        flags = [name for name in values if name.startswith("pooling_mode_") and values[name]]
        in_order = [*(name for name in POOLING if name in flags), *flags]
        stated = [POOLING.get(name, name) for name in dict.fromkeys(in_order)] or "mean"
    modes = stated if isinstance(stated, list) else [stated]
    known: tuple[Pooling, ...] = get_args(Pooling)
    if not 1 <= len(modes) <= MOST_POOLINGS or any(mode not in known for mode in modes):
        found = printable(", ".join(map(str, modes))) or "none"
        raise CheckpointError(
            path, [f"pooling_mode: expected some of {', '.join(known)}, found {found:.200}"]
        )
    if values.get("include_prompt") is False and any(prompts.texts.values()):
        raise CheckpointError(
            path, ["include_prompt: expected true, since prompts are pooled with their texts"]
        )
    return tuple(modes)


def _check_features(path: Path, values: Values, keys: KnownSettings, notes: list[str]) -> None:
    notes += keys.notes(f"{path.parent.name}/{path.name}", values)
    problems = keys.unsupported(values)
    problems += [
        f"{field}: expected {FEATURE}, found {shown(values[field])}"
        for field in ("module_input_name", "module_output_name")
        if values.get(field) not in (None, FEATURE)
    ]
    if problems:
        raise CheckpointError(path, problems)


def _dense(directory: Path, notes: list[str]) -> tuple[EmbeddingLayer, Weights]:
    path = directory / CONFIG_FILE
    values = read_json(path)
    _check_features(path, values, DENSE, notes)
    size = values.get("out_features")
    if type(size) is not int or size < 1:
        raise CheckpointError(path, [f"out_features: expected at least 1, found {shown(size)}"])
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    package, _, kind = name.rpartition(".")
    activation = ACTIVATIONS.get(kind) if package.startswith("torch.") else None
    if activation is None:
        known, found = ", ".join(ACTIVATIONS), printable(name)
        raise CheckpointError(
            path, [f"activation_function: expected one of PyTorch's {known}, found {found:.200}"]
        )
    weights, _ = read_weights(directory)
    bias = values.get("bias", True)
    return EmbeddingLayer(kind="dense", size=size, activation=activation, bias=bias), weights


def _layer_norm(directory: Path, notes: list[str]) -> tuple[EmbeddingLayer, Weights]:
    path = directory / CONFIG_FILE
    _check_features(path, read_json(path), LAYER_NORM, notes)
    weights, _ = read_weights(directory)
    names = {"norm.weight": "gain", "norm.bias": "bias"}
    return EmbeddingLayer(kind="layer_norm"), {names.get(n, n): w for n, w in weights.items()}


def _normalize(directory: Path, notes: list[str]) -> tuple[EmbeddingLayer, Weights]:
    path = directory / CONFIG_FILE
    _check_features(path, read_json_if_present(path), NORMALIZE, notes)
    return EmbeddingLayer(kind="normalize"), {}


LAYERS: dict[str, Callable[[Path, list[str]], tuple[EmbeddingLayer, Weights]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
}
"""The functions that read the modules after Pooling."""


def _prompts(path: Path, library: Values) -> Prompts:
    texts, default = library.get("prompts") or {}, library.get("default_prompt_name")
    if not isinstance(texts, dict) or not all_are(str, texts.values()):
        raise CheckpointError(
            path, [f"prompts: expected texts by their names, found {shown(texts)}"]
        )
    if default is not None and default not in texts:
        known = ", ".join(texts) or "none"
        raise CheckpointError(
            path, [f"default_prompt_name: expected one of {known:.200}, found {shown(default)}"]
        )
    return Prompts(texts, default)


def _kept(path: Path, library: Values, size: object) -> int:
    """Return how many components of an embedding the library keeps; 0: all."""
    stated = library.get("truncate_dim")
    if stated is None:
        return 0
    if type(stated) is not int or stated < 1:
        raise CheckpointError(path, [f"truncate_dim: expected at least 1, found {shown(stated)}"])
    return 0 if isinstance(size, int) and stated >= size else stated


def _lower_cased(tokenizers: TokenizerFiles) -> TokenizerFiles:
    source = tokenizers.source
    tokenizer = Tokenizer.from_file(str(source)) if isinstance(source, Path) else source
    assert isinstance(tokenizer, Tokenizer)
    rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return replace(tokenizers, source=tokenizer, target=tokenizer)
