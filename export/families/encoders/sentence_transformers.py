"""A directory of sentence-transformers: an encoder, and the modules that make its embeddings.

`modules.json` lists the modules in order: Transformer (a Hugging Face directory), Pooling, then
optionally Dense and Normalize (Reimers & Gurevych 2019).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, get_args

from tokenizers import Tokenizer, normalizers

from dragoman.files.regular_files import SETTINGS_BYTES, FileError
from dragoman.files.strict_json import read_json as read_any_json
from dragoman.files.text_lines import printable
from dragoman.reference_model import CheckpointError, ConfigError, HeadConfig
from dragoman.reference_model.head_config import DenseActivation, Pooling

from ...formats.detection import CONFIG_FILE, MODULES_FILE
from ...formats.json_files import Values, read_json, read_json_if_present
from ...formats.tensor_files import Weights, read_weights
from ...tokenizers import TokenizerFiles, TokenizerKind
from ...tokenizers.checkpoint import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from .. import ENCODER_FAMILIES
from ..checkpoint import Checkpoint
from .loading import read_encoder

EXPECTED_MODULES = "Transformer, Pooling and, optionally, Dense and Normalize"

SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Names of the settings file, in the library's order. Old versions named it after the class."""

POOLING: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
"""Poolings by the flags that preceded the setting `pooling_mode`."""

ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
"""Activations by the names of PyTorch's classes."""

FEATURE = "sentence_embedding"
"""The feature that a module reads and writes by default."""
MOST_PROMPTS = 5
"""Maximum number of prompts that a note names."""


class Module(NamedTuple):
    """An entry of modules.json."""

    kind: str
    directory: Path


def read_sentence_transformers(
    directory: Path, values: Values, all_kinds: tuple[TokenizerKind, ...]
) -> Checkpoint:
    """Read an encoder and the modules that make its embeddings.

    Args:
        values: fields of the directory's `config.json`; {} without that file
        all_kinds: kinds of tokenizers of all families

    Raises:
        CheckpointError, ConfigError, DragomanError: see `read_encoder`; or a module is not
            supported.
    """
    modules = read_modules(directory)
    kinds = [module.kind for module in modules if module.kind != "Dropout"]
    of_kind = {module.kind: module.directory for module in modules}
    expected = ["Transformer", "Pooling", *(["Dense"] if "Dense" in of_kind else [])]
    normalize = kinds == [*expected, "Normalize"]
    if not normalize and kinds != expected:
        found = printable(", ".join(kinds)) or "none"
        raise CheckpointError(
            directory / MODULES_FILE,
            [f"expected the modules {EXPECTED_MODULES}, in this order, found {found}"],
        )
    transformer = of_kind["Transformer"]
    head_weights: Weights = {}
    notes: list[str] = []
    pooling = _pooling(of_kind["Pooling"], notes)
    head: dict[str, Any] = {"pooling": pooling, "normalize": normalize}
    if "Dense" in of_kind:
        head |= _dense(of_kind["Dense"], head_weights)
    path = _settings_file(transformer)
    settings = {} if path is None else read_json(path)
    if transformer != directory or not values:
        values = read_json(transformer / CONFIG_FILE)
    checkpoint = read_encoder(
        transformer,
        values,
        ENCODER_FAMILIES[_model_type(values)],
        all_kinds,
        head=HeadConfig(task="embedding", **head),
        longest=_longest(settings, path, transformer),
        head_weights=head_weights,
    )
    tokenizers = checkpoint.tokenizers
    if settings.get("do_lower_case") and tokenizers is not None:
        tokenizers = _lower_cased(tokenizers)
    notes += _of_prompts(read_json_if_present(directory / "config_sentence_transformers.json"))
    return Checkpoint(checkpoint.model, tokenizers, (*checkpoint.notes, *notes))


def read_modules(directory: Path) -> list[Module]:
    """Read the modules that a directory lists.

    Raises:
        CheckpointError: modules.json does not have the format of sentence-transformers.
    """
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
        raise ConfigError([f"model_type: expected one of {known}, found {found!r}"])
    return found


def _settings_file(directory: Path) -> Path | None:
    """Return the first existing settings file; its name depends on the library's version."""
    paths = (directory / name for name in SETTINGS_FILES)
    return next((path for path in paths if path.exists()), None)


def _longest(settings: Values, path: Path | None, transformer: Path) -> int | None:
    """Return the maximum number of tokens of a text; None: the number of positions.

    Version 5.7 of the library writes it only to the settings of the tokenizer.
    """
    longest = settings.get("max_seq_length")
    if path is None or longest is None:
        tokenizer = read_json_if_present(transformer / TOKENIZER_CONFIG_FILE)
        longest = tokenizer.get("model_max_length")  # 1e30: unlimited
        return longest if type(longest) is int and longest > 0 else None
    if type(longest) is int and longest > 0:
        return longest
    raise CheckpointError(path, [f"max_seq_length: expected a number, found {longest!r}"])


def _pooling(directory: Path, notes: list[str]) -> Pooling:
    """Return the pooling of a directory.

    Args:
        notes: receives a sentence if the pooling of prompts differs from the library's
    """
    path = directory / CONFIG_FILE
    values = read_json(path)
    stated = values.get("pooling_mode")
    if stated is None:
        flags = [name for name in values if name.startswith("pooling_mode_") and values[name]]
        stated = [POOLING.get(name, name) for name in flags] or "mean"
    modes = stated if isinstance(stated, list) else [stated]
    known: tuple[Pooling, ...] = get_args(Pooling)
    for mode in known:
        if modes == [mode]:
            if values.get("include_prompt") is False:
                notes.append(
                    "sentence-transformers leaves prompts out of the pooling (include_prompt is "
                    "false); here they are pooled with their texts"
                )
            return mode
    found = printable(", ".join(map(str, modes))) or "none"
    raise CheckpointError(
        path, [f"pooling_mode: expected one of {', '.join(known)}, found {found:.200}"]
    )


def _dense(directory: Path, weights: Weights) -> dict[str, Any]:
    """Read the dense layer as fields of the head; add its weights to `weights`."""
    path = directory / CONFIG_FILE
    values = read_json(path)
    for field in ("module_input_name", "module_output_name"):
        feature = values.get(field)
        if feature not in (None, FEATURE):
            raise CheckpointError(path, [f"{field}: expected {FEATURE}, found {feature!r:.60}"])
    size = values.get("out_features")
    if type(size) is not int or size < 1:
        raise CheckpointError(path, [f"out_features: expected at least 1, found {size!r:.60}"])
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    package, _, kind = name.rpartition(".")
    activation = ACTIVATIONS.get(kind) if package.startswith("torch.") else None
    if activation is None:
        known, found = ", ".join(ACTIVATIONS), printable(name)
        raise CheckpointError(
            path, [f"activation_function: expected one of PyTorch's {known}, found {found:.200}"]
        )
    stored, _ = read_weights(directory)
    weights |= {f"head.dense.{weight}": tensor for weight, tensor in stored.items()}
    return {
        "dense_size": size,
        "dense_bias": values.get("bias", True),
        "dense_activation": activation,
    }


def _of_prompts(settings: Values) -> list[str]:
    """Return notes on the prompts that the library adds to texts."""
    stated = settings.get("prompts")
    prompts = stated if isinstance(stated, dict) else {}
    notes, default = [], settings.get("default_prompt_name")
    if default and prompts.get(str(default)) != "":
        notes.append(
            f"sentence-transformers puts the prompt {default!r:.60} before every text; here the "
            "caller does"
        )
    named = [name for name, text in prompts.items() if text and name != default]
    if named:
        shown = ", ".join(repr(name)[:60] for name in named[:MOST_PROMPTS])
        shown += ", ..." if len(named) > MOST_PROMPTS else ""
        notes.append(
            f"sentence-transformers puts a prompt before texts that are encoded as {shown}; here "
            "the caller does"
        )
    return notes


def _lower_cased(tokenizers: TokenizerFiles) -> TokenizerFiles:
    """Make the tokenizer lower-case texts first."""
    source = tokenizers.source
    tokenizer = Tokenizer.from_file(str(source)) if isinstance(source, Path) else source
    assert isinstance(tokenizer, Tokenizer)
    rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return TokenizerFiles(tokenizer, tokenizer)
