"""Files of JSON in the directory of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.reference_model import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            path.parent, [f"expected a readable {path.name}: {error.strerror}"]
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, [f"not JSON: {error}"]) from error
    if not isinstance(values, dict):
        raise CheckpointError(path, [f"expected a JSON object, found {type(values).__name__}"])
    return values
