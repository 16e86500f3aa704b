"""A directory of sentence-transformers: an encoder, and the modules that make its vectors.

`modules.json` lists them in order: Transformer, a directory of Hugging Face; Pooling; then Dense
and Normalize, if there are any (Reimers & Gurevych 2019).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, normalizers

from dragoman.printable import printable
from dragoman.reference_model import CheckpointError, ConfigError, HeadConfig
from dragoman.reference_model.head_config import DenseActivation, Pooling
from dragoman.regular_files import SETTINGS_BYTES, FileError
from dragoman.strict_json import read_json as read_any_json

from ...formats.detection import CONFIG_FILE, MODULES_FILE
from ...formats.json_files import Values, read_json, read_json_if_present
from ...formats.tensor_files import Weights, read_weights
from ...tokenizers import TokenizerFiles, TokenizerKind
from ..checkpoint import Checkpoint
from . import ENCODER_FAMILIES
from .loading import read_encoder

EXPECTED_MODULES = "Transformer, Pooling and, if wanted, Dense and Normalize"

SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""In the order in which the library looks for them. Old versions named it after the class."""

POOLING: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}

ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
"""By the names of PyTorch's classes."""


class Module(NamedTuple):
    """An entry of modules.json."""

    kind: str
    directory: Path


def read_sentence_transformers(directory: Path, all_kinds: tuple[TokenizerKind, ...]) -> Checkpoint:
    """Read an encoder and the modules that make its vectors.

    Args:
        all_kinds: of tokenizers, of all families

    Raises:
        CheckpointError, ConfigError, DragomanError: as `read_encoder`; or a module is not
            supported.
    """
    modules = read_modules(directory)
    kinds = [module.kind for module in modules if module.kind != "Dropout"]
    of_kind = {module.kind: module.directory for module in modules}
    expected = ["Transformer", "Pooling", *(["Dense"] if "Dense" in of_kind else [])]
    normalize = kinds == [*expected, "Normalize"]
    if not normalize and kinds != expected:
        raise CheckpointError(
            directory / MODULES_FILE,
            [f"expected the modules {EXPECTED_MODULES}, in this order, found {', '.join(kinds)}"],
        )
    transformer = of_kind["Transformer"]
    head_weights: Weights = {}
    head: dict[str, Any] = {"pooling": _pooling(of_kind["Pooling"]), "normalize": normalize}
    if "Dense" in of_kind:
        head |= _dense(of_kind["Dense"], head_weights)
    path = _settings_file(transformer)
    settings = {} if path is None else read_json(path)
    checkpoint = read_encoder(
        transformer,
        ENCODER_FAMILIES[_model_type(transformer)],
        all_kinds,
        head=HeadConfig(task="embedding", **head),
        longest=_longest(settings, path),
        head_weights=head_weights,
    )
    tokenizers, notes = checkpoint.tokenizers, checkpoint.notes
    if settings.get("do_lower_case") and tokenizers is not None:
        tokenizers = _lower_cased(tokenizers)
    prompts = read_json_if_present(directory / "config_sentence_transformers.json")
    if prompts.get("default_prompt_name"):
        notes = (
            *notes,
            f"sentence-transformers puts the prompt {prompts['default_prompt_name']!r} before "
            "every text; here the caller does",
        )
    return Checkpoint(checkpoint.model, tokenizers, notes)


def read_modules(directory: Path) -> list[Module]:
    """
    Raises:
        CheckpointError: modules.json is not what sentence-transformers writes.
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
    except (OSError, RuntimeError, ValueError):  # no name, or links in a circle
        return False


def _model_type(directory: Path) -> str:
    found = read_json(directory / CONFIG_FILE).get("model_type")
    if not isinstance(found, str) or found not in ENCODER_FAMILIES:
        known = ", ".join(ENCODER_FAMILIES)
        raise ConfigError([f"model_type: expected one of {known}, found {found!r}"])
    return found


def _settings_file(directory: Path) -> Path | None:
    """The first that there is; which name it has depends on the version that wrote it."""
    paths = (directory / name for name in SETTINGS_FILES)
    return next((path for path in paths if path.exists()), None)


def _longest(settings: Values, path: Path | None) -> int | None:
    longest = settings.get("max_seq_length")
    if path is None or longest is None or (type(longest) is int and longest > 0):
        return longest
    raise CheckpointError(path, [f"max_seq_length: expected a number, found {longest!r}"])


def _pooling(directory: Path) -> Pooling:
    path = directory / CONFIG_FILE
    values = read_json(path)
    modes = [name for name in values if name.startswith("pooling_mode_")]
    stated = [name for name in modes if values[name] is True]
    mode = values.get("pooling_mode")
    if isinstance(mode, str):
        stated = [f"pooling_mode_{mode}_{'token' if mode == 'cls' else 'tokens'}"]
    if len(stated) != 1 or stated[0] not in POOLING:
        known, found = ", ".join(POOLING), ", ".join(stated) or "none"
        raise CheckpointError(path, [f"expected one of {known}, found {found}"])
    return POOLING[stated[0]]


def _dense(directory: Path, weights: Weights) -> dict[str, Any]:
    """Fields of the head; its weights are added to `weights`."""
    path = directory / CONFIG_FILE
    values = read_json(path)
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(path, [f"activation_function: expected one of {known}, found {name}"])
    stored, _ = read_weights(directory)
    weights |= {f"head.dense.{weight}": tensor for weight, tensor in stored.items()}
    return {
        "dense_size": values.get("out_features", 0),
        "dense_bias": values.get("bias", True),
        "dense_activation": activation,
    }


def _lower_cased(tokenizers: TokenizerFiles) -> TokenizerFiles:
    """Texts are lower-cased before anything else."""
    source = tokenizers.source
    tokenizer = Tokenizer.from_file(str(source)) if isinstance(source, Path) else source
    assert isinstance(tokenizer, Tokenizer)
    rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return TokenizerFiles(tokenizer, tokenizer)
