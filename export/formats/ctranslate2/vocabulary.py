"""The vocabularies beside a CTranslate2 model: lists of tokens in the order of their ids."""

from __future__ import annotations

import json
from pathlib import Path

from dragoman.reference_model import CheckpointError

Vocabulary = list[str]


def read_vocabulary(directory: Path, name: str) -> Vocabulary | None:
    """The tokens of `name`.json or `name`.txt in the order of their ids; None if neither exists.

    Raises:
        CheckpointError: the file cannot be read, or is not a list of tokens.
    """
    json_path, text_path = directory / f"{name}.json", directory / f"{name}.txt"
    path = json_path if json_path.is_file() else text_path
    if not path.is_file():
        return None
    try:
        text = path.read_bytes().decode()
        tokens = json.loads(text) if path == json_path else text.removesuffix("\n").split("\n")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, [f"expected a list of tokens: {error}"]) from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(path, ["expected a list of tokens"])
    # A token may end in a carriage return. If all do, the file was written on Windows.
    from_windows = path == text_path and all(token.endswith("\r") for token in tokens)
    return [token[:-1] for token in tokens] if from_windows else tokens
