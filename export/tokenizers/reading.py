"""Reading the tokenizer files of checkpoints; what is wrong with them is said here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from dragoman.errors import DragomanError

LIBRARY_FILE = "tokenizer.json"
_TIMESTAMP = re.compile(r"<\|\d+\.\d+\|>")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file.

    Raises:
        DragomanError: the file holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DragomanError(f"{path}: expected a JSON object: {error}") from error
    if not isinstance(data, dict):
        raise DragomanError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def read_vocabulary(path: Path, size: int) -> dict[str, int]:
    """A JSON object of pieces and their token ids.

    Args:
        size: of the model's vocabulary

    Raises:
        DragomanError: it is none, or has ids outside the vocabulary.
    """
    vocabulary = read_object(path)
    if not vocabulary or not all(type(token) is int for token in vocabulary.values()):
        raise DragomanError(f"{path}: expected a JSON object of pieces and their token ids")
    check_ids(path, vocabulary, size)
    return vocabulary


def check_ids(path: Path, vocabulary: Mapping[str, int], size: int) -> None:
    """Raise a DragomanError where token ids are outside a vocabulary of so many tokens."""
    outside = {token: piece for piece, token in vocabulary.items() if not 0 <= token < size}
    if outside:
        first = min(outside)
        raise DragomanError(
            f"{path}: expected token ids in [0, {size}), the model's vocabulary, found "
            f"{len(outside)} outside, as {first} ({outside[first]!r})"
        )


def read_library_file(path: Path, size: int) -> Tokenizer:
    """A file of the `tokenizers` library.

    Raises:
        DragomanError: it is none, or has ids outside the vocabulary.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise DragomanError(f"{path}: not a tokenizer file: {error}") from error
    check_ids(path, tokenizer.get_vocab(with_added_tokens=True), size)
    return tokenizer


def known_pieces(processor: Any) -> dict[str, int]:
    """The pieces that stand for text, with the ids of the SentencePiece model itself."""
    return {
        processor.id_to_piece(i): i
        for i in range(processor.get_piece_size())
        if not (processor.is_control(i) or processor.is_unknown(i))
    }


def complete(directory: Path, *names: str) -> bool:
    """Whether files that belong together are there: all, or none.

    Raises:
        DragomanError: only some are.
    """
    missing = [name for name in names if not (directory / name).is_file()]
    if missing and len(missing) < len(names):
        found = next(name for name in names if name not in missing)
        raise DragomanError(
            f"{directory}: expected {', '.join(missing)} beside {found}, found none"
        )
    return not missing


def without_timestamps(tokenizer: Tokenizer) -> Tokenizer:
    """With the tokens that say when something is said hidden, as `transformers` does."""
    listed = tokenizer.get_added_tokens_decoder().values()
    tokenizer.add_special_tokens(
        [
            AddedToken(token.content, special=True, normalized=False)
            for token in listed
            if _TIMESTAMP.fullmatch(token.content)
        ]
    )
    return tokenizer


def demand(path: Path, vocabulary: Mapping[str, int], *tokens: str) -> None:
    """Raise a DragomanError where a vocabulary lacks one of these tokens."""
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise DragomanError(f"{path}: expected a token {missing[0]!r}, found none")
