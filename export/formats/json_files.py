"""JSON files in the directory of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.reference_model import CheckpointError

Values = Mapping[str, Any]
"""The fields of a JSON object, such as `config.json`."""


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file.

    Raises:
        CheckpointError: the file cannot be read, or is not a JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            path.parent, [f"expected a readable {path.name}: {error.strerror}"]
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            path, [f"expected a JSON object, found text that is not JSON: {error}"]
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(path, [f"expected a JSON object, found {type(values).__name__}"])
    return values


def read_json_if_present(path: Path) -> dict[str, Any]:
    """The fields of a JSON file; {} where there is no such file.

    Raises:
        CheckpointError: the file cannot be read, or is not a JSON object.
    """
    return read_json(path) if path.is_file() else {}
