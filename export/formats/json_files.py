"""JSON files of checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.files.regular_files import SETTINGS_BYTES, FileError
from dragoman.files.strict_json import read_json_object
from dragoman.reference_model import CheckpointError

Values = Mapping[str, Any]
"""The fields of a JSON object, such as `config.json`."""


def read_json(path: Path, *, limit: int = SETTINGS_BYTES) -> dict[str, Any]:
    """Read the fields of a JSON file of at most so many bytes."""
    try:
        return read_json_object(path, limit=limit)
    except FileError as error:
        raise CheckpointError(path, [error.problem]) from error


def read_json_if_present(path: Path, *, limit: int = SETTINGS_BYTES) -> dict[str, Any]:
    """Read the fields of a JSON file as `read_json` does; {} if it is missing."""
    return read_json(path, limit=limit) if path.exists() else {}
