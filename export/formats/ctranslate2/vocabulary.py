"""The vocabularies beside a CTranslate2 model: lists of tokens in the order of their ids."""

from __future__ import annotations

from pathlib import Path

from dragoman.reference_model import CheckpointError
from dragoman.regular_files import VOCABULARY_BYTES, FileError, read_regular
from dragoman.strict_json import read_json

Vocabulary = list[str]


def read_vocabulary(
    directory: Path, name: str, *, rows: int = 0, unknown: str = "<unk>"
) -> Vocabulary | None:
    """The tokens of `name`.json or `name`.txt in the order of their ids; None if neither exists.

    CTranslate2 appends the token for unknown ones to a vocabulary that lacks it. Here it is
    appended where the model has a row for it.

    Args:
        rows: of the table that embeds the tokens; 0: as many as the file has tokens
        unknown: the token for unknown ones

    Raises:
        CheckpointError: the file cannot be read, or is not a list of tokens.
    """
    json_path, text_path = directory / f"{name}.json", directory / f"{name}.txt"
    path = json_path if json_path.exists() else text_path
    if not path.exists():
        return None
    tokens = _read_list(path) if path == json_path else _read_lines(path)
    if rows == len(tokens) + 1 and unknown not in tokens:
        tokens.append(unknown)
    return tokens


def _read_list(path: Path) -> Vocabulary:
    try:
        tokens = read_json(path, limit=VOCABULARY_BYTES)
    except FileError as error:
        raise CheckpointError(path, [f"expected a list of tokens: {error.problem}"]) from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(path, ["expected a list of tokens"])
    return tokens


def _read_lines(path: Path) -> Vocabulary:
    try:
        text = read_regular(path, VOCABULARY_BYTES).decode()
    except FileError as error:
        raise CheckpointError(path, [f"expected a list of tokens: {error.problem}"]) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(path, [f"expected a list of tokens in UTF-8: {error}"]) from error
    tokens = text.removesuffix("\n").split("\n")
    # A token may end in a carriage return. If all do, the file was written on Windows.
    from_windows = all(token.endswith("\r") for token in tokens)
    return [token[:-1] for token in tokens] if from_windows else tokens
