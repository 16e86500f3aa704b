"""The format of a checkpoint directory, recognised by its files alone.

Nothing heavy is imported here, so that the command line can refuse a wrong path at once. What is in
the files is checked later, by the readers in `export.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dragoman.errors import DragomanError
from dragoman.strict_json import read_json_object

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
WEIGHTS_FILE = "model.safetensors"
CTRANSLATE2_FILE = "model.bin"
DRAGOMAN_FILES = (CONFIG_FILE, WEIGHTS_FILE)
TENSOR_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
"""In order of preference. Each may be split into parts, with an index beside them."""
INDEX_SUFFIX = ".index.json"

FormatName = Literal[
    "Dragoman", "Hugging Face", "sentence-transformers", "CTranslate2", "state dictionary"
]

MODEL_TYPES: Mapping[str, FormatName] = {
    "bart": "Hugging Face",
    "bert": "Hugging Face",
    "distilbert": "Hugging Face",
    "gpt2": "Hugging Face",
    "m2m_100": "Hugging Face",
    "marian": "Hugging Face",
    "mbart": "Hugging Face",
    "mt5": "Hugging Face",
    "pegasus": "Hugging Face",
    "roberta": "Hugging Face",
    "pytorch-seq2seq": "state dictionary",
    "t5": "Hugging Face",
    "torch.nn.Transformer": "state dictionary",
    "whisper": "Hugging Face",
    "xlm-roberta": "Hugging Face",
}
"""Every `model_type` of `config.json` that can be read; `export.families` has a record for each."""


@dataclass(frozen=True)
class Format:
    """A layout of checkpoint directories.

    Attributes:
        matches: whether a directory with this `config.json` ({} where there is none) is of the
            format
        required: files without which such a directory cannot be read
        weights: files of which it needs one, or its index
    """

    name: FormatName
    matches: Callable[[Path, Mapping[str, Any]], bool]
    required: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()


FORMATS: tuple[Format, ...] = (
    Format("sentence-transformers", lambda path, values: _has_any(path, MODULES_FILE)),
    Format("state dictionary", lambda path, values: _stated(values) == "state dictionary"),
    Format("Hugging Face", lambda path, values: "model_type" in values, weights=TENSOR_FILES),
    Format("CTranslate2", lambda path, values: _has_any(path, CTRANSLATE2_FILE)),
    Format("Dragoman", lambda path, values: _has_any(path, *DRAGOMAN_FILES), DRAGOMAN_FILES),
)
"""In order: the first that matches is the format. The weights of sentence-transformers may lie in a
folder that `modules.json` names. CTranslate2's own `config.json` has no `model_type`."""


def format_of(directory: Path, values: Mapping[str, Any]) -> Format:
    """The format of a directory.

    Args:
        values: fields of its `config.json`; {} where there is none

    Raises:
        DragomanError: it is no directory, it is empty, or no format matches.
    """
    if not directory.is_dir():
        found = "a file" if directory.exists() else "no such directory"
        raise DragomanError(f"{directory}: expected the directory of a checkpoint, found {found}")
    for known in FORMATS:
        if known.matches(directory, values):
            return known
    raise DragomanError(
        f"{directory}: expected a checkpoint, with {CONFIG_FILE} beside its weights or "
        f"{CTRANSLATE2_FILE} of CTranslate2, found {_describe(directory)}"
    )


def check_is_checkpoint(directory: Path) -> None:
    """Refuse what cannot be a checkpoint, without importing what reads one.

    Raises:
        DragomanError: there is no such directory, it is empty, holds no known format, lacks a file
            that its format requires, or its `config.json` is damaged or of an unknown model type.
    """
    known = format_of(directory, read_configuration(directory))
    required, weights = known.required, known.weights
    missing = [name for name in required if not (directory / name).is_file()]
    if missing:
        raise DragomanError(
            f"{directory}: "
            + "; ".join(
                f"expected a checkpoint with {' and '.join(required)}, found no {name}"
                for name in missing
            )
        )
    if weights and not _has_any(directory, *weights, *(n + INDEX_SUFFIX for n in weights)):
        raise DragomanError(f"{directory}: {no_weights()}")


def read_configuration(directory: Path) -> dict[str, Any]:
    """The fields of a directory's `config.json`; {} where there is none.

    Raises:
        DragomanError: it is damaged, or of an unknown model type.
    """
    config = directory / CONFIG_FILE
    values = read_json_object(config) if config.exists() else {}
    if "model_type" in values and _stated(values) is None:
        raise DragomanError(f"{config}: {unknown_model_type(values['model_type'])}")
    return values


def unknown_model_type(model_type: object) -> str:
    """The problem with a `model_type` that is not in `MODEL_TYPES`."""
    return f"model_type: expected one of {', '.join(sorted(MODEL_TYPES))}, found {model_type!r}"


def no_weights() -> str:
    """The problem with a directory that has none of `TENSOR_FILES`."""
    return f"expected {' or '.join(TENSOR_FILES)}, or an index of their parts, found none"


def _describe(directory: Path) -> str:
    """A description of a directory that has neither file."""
    try:
        return "neither" if any(directory.iterdir()) else "an empty directory"
    except OSError as error:
        return f"a directory that cannot be read ({error.strerror})"


def _has_any(directory: Path, *names: str) -> bool:
    return any((directory / name).exists() for name in names)


def _stated(values: Mapping[str, Any]) -> FormatName | None:
    """The format that the model type implies."""
    model_type = values.get("model_type")
    return MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
