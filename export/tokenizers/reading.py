"""Reading the tokenizer files of checkpoints, and checking them against the model's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from dragoman.errors import DragomanError
from dragoman.regular_files import VOCABULARY_BYTES
from dragoman.runtime.texts.codecs.tokenizer_file import read_tokenizer

from ..formats.json_files import read_json_if_present

LIBRARY_FILE = "tokenizer.json"


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """A JSON object of pieces and their token ids.

    Args:
        size: of the model's vocabulary

    Raises:
        DragomanError: the file is something else, or has ids outside the vocabulary.
    """
    vocabulary = read_json_if_present(path, limit=VOCABULARY_BYTES)
    if not vocabulary or not all(type(token) is int for token in vocabulary.values()):
        raise DragomanError(f"{path}: expected a JSON object of pieces and their token ids")
    check_ids(path, vocabulary, size)
    return vocabulary


def read_library_file(path: Path, size: int) -> Tokenizer:
    """A file of the `tokenizers` library.

    Args:
        size: of the model's vocabulary

    Raises:
        DragomanError: the file is something else, makes the library fail, or has ids outside the
            vocabulary.
    """
    tokenizer = read_tokenizer(path)
    check_ids(path, tokenizer.get_vocab(with_added_tokens=True), size)
    return tokenizer


def check_ids(path: Path, vocabulary: Mapping[str, int], size: int) -> None:
    """Raise a DragomanError if a token id is outside a vocabulary of `size` tokens."""
    outside = {token: piece for piece, token in vocabulary.items() if not 0 <= token < size}
    if outside:
        first = min(outside)
        raise DragomanError(
            f"{path}: expected token ids in [0, {size}), the model's vocabulary, found "
            f"{len(outside)} outside, such as {first} ({outside[first]!r})"
        )


def check_has_tokens(path: Path, vocabulary: Mapping[str, int], *tokens: str) -> None:
    """Raise a DragomanError if a vocabulary lacks one of these tokens."""
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise DragomanError(f"{path}: expected a token {missing[0]!r}, found none")


def all_present(directory: Path, *names: str) -> bool:
    """Whether files that belong together are there: all, or none.

    Raises:
        DragomanError: only some are there.
    """
    missing = [name for name in names if not (directory / name).exists()]
    if missing and len(missing) < len(names):
        present = next(name for name in names if name not in missing)
        raise DragomanError(
            f"{directory}: expected {', '.join(missing)} beside {present}, found none"
        )
    return not missing
