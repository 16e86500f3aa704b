"""The format of a checkpoint directory, recognized by the names of its files.

It imports no heavy libraries, so that the command line refuses a wrong path at once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, shown
from dragoman.files.strict_json import read_json_object

from ..registry import MODEL_TYPES, FormatName
from .adapter_config import refuse_alone
from .contents import refuse_broken_links

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
MODULES_FILE = "modules.json"
WEIGHTS_FILE = "model.safetensors"
CTRANSLATE2_FILE = "model.bin"
DRAGOMAN_FILES = (CONFIG_FILE, WEIGHTS_FILE)
MARIAN_VERSION = 1
"""The version of `.bin` files of Marian, with which they begin as a number of 8 bytes."""
MARIAN_CONFIGURATION = "special:model.yml"
TENSOR_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
"""Weight files in order of preference. Each may be split into parts with an index."""
INDEX_SUFFIX = ".index.json"


@dataclass(frozen=True)
class Format:
    """A layout of checkpoint directories."""

    name: FormatName
    matches: Callable[[Path, Mapping[str, Any]], bool]
    """Whether a directory with this `config.json` ({} without that file) has the format."""
    required: tuple[str, ...] = ()
    """Required files."""
    weights: tuple[str, ...] = ()
    """Names of weight files; one of them, or its index, is required."""


FORMATS: tuple[Format, ...] = (
    Format("sentence-transformers", lambda path, values: _has_any(path, MODULES_FILE)),
    Format("state dictionary", lambda path, values: _stated(values) == "state dictionary"),
    Format("Hugging Face", lambda path, values: "model_type" in values, weights=TENSOR_FILES),
    Format("Marian", lambda path, values: not values and bool(marian_files(path))),
    Format("CTranslate2", lambda path, values: _has_any(path, CTRANSLATE2_FILE)),
    Format("Dragoman", lambda path, values: _has_any(path, *DRAGOMAN_FILES), DRAGOMAN_FILES),
)
"""Formats in the order of matching. The weights of sentence-transformers may be in a folder that
`modules.json` names. CTranslate2's own `config.json` has no `model_type`; its `model.bin` and those
of Marian begin with other bytes."""


def format_of(directory: Path, values: Mapping[str, Any]) -> Format:
    """Return the format of a directory, whose `config.json` has these fields; {} without it."""
    if not directory.is_dir():
        found = "a file" if directory.exists() else "no such directory"
        raise DragomanError(f"{directory}: expected the directory of a checkpoint, found {found}")
    refuse_broken_links(directory)
    for known in FORMATS:
        if known.matches(directory, values):
            return known
    refuse_alone(directory)
    raise DragomanError(
        f"{directory}: expected a checkpoint, with {CONFIG_FILE} beside its weights, "
        f"{CTRANSLATE2_FILE} of CTranslate2, or model.npz or .bin of Marian, found "
        f"{_describe(directory)}"
    )


def marian_files(directory: Path) -> list[Path]:
    """List the files of a directory that may be models of Marian; not those of its optimizer.

    Where there is a `model.npz`, it is the only one: a training also writes the best model of each
    metric.
    """
    if (directory / "model.npz").is_file():
        return [directory / "model.npz"]
    found = [path for path in directory.glob("*.npz") if _has_configuration(path)]
    for path in directory.glob("*.bin"):
        try:
            with path.open("rb") as file:
                begins = file.read(8) == MARIAN_VERSION.to_bytes(8, "little")
        except OSError:
            continue
        found += [path] if begins else []
    return sorted(path for path in found if path.is_file())


def _has_configuration(path: Path) -> bool:
    """Return whether an .npz file has a configuration, which that of an optimizer has not."""
    try:
        with zipfile.ZipFile(path) as archive:
            return MARIAN_CONFIGURATION + ".npy" in archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def check_is_checkpoint(directory: Path) -> dict[str, Any]:
    """Refuse a directory that cannot be a checkpoint; return the fields of its `config.json`."""
    values = read_configuration(directory)
    known = format_of(directory, values)
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
        refuse_alone(directory)
        raise DragomanError(f"{directory}: {no_weights()}")
    return values


def read_configuration(directory: Path) -> dict[str, Any]:
    """Read the fields of a directory's `config.json`; {} without that file."""
    config = directory / CONFIG_FILE
    values = read_json_object(config) if config.exists() else {}
    if "model_type" in values and _stated(values) is None:
        raise DragomanError(f"{config}: {unknown_model_type(values['model_type'])}")
    return values


def unknown_model_type(model_type: object) -> str:
    """Return the problem of a `model_type` without a registered family."""
    return (
        f"model_type: expected one of {', '.join(sorted(MODEL_TYPES))}, found {shown(model_type)}"
    )


def no_weights() -> str:
    """Return the problem of a directory without any of `TENSOR_FILES`."""
    return f"expected {' or '.join(TENSOR_FILES)}, or an index of their parts, found none"


def _describe(directory: Path) -> str:
    try:
        names = sorted(path.name for path in directory.iterdir())
        compressed = [name for name in names if name.endswith((".bin.gz", ".bin.zst", ".npz.gz"))]
        if compressed:
            return f"{compressed[0]}: decompress the files first"
        return "none of them" if names else "an empty directory"
    except OSError as error:
        return f"a directory that cannot be read ({error.strerror})"


def _has_any(directory: Path, *names: str) -> bool:
    return any((directory / name).exists() for name in names)


def _stated(values: Mapping[str, Any]) -> FormatName | None:
    model_type = values.get("model_type")
    row = MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    return row.format if row else None
