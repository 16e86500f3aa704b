"""The tokenizers of a model, as files."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from dragoman.errors import DragomanError

from ..files import write_whole
from .recipe import SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE, Tokenizers

FILES = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)


def write_tokenizers(tokenizers: Tokenizers, directory: Path) -> None:
    """
    Raises:
        DragomanError: a file cannot be written.
    """
    for tokenizer, name in zip(tokenizers, FILES, strict=True):
        text = tokenizer.to_str(pretty=True)
        write_whole(
            directory / name,
            lambda partial, text=text: partial.write_text(text, encoding="utf-8"),  # type: ignore[misc]
        )


def read_tokenizers(directory: Path) -> Tokenizers:
    """
    Raises:
        DragomanError: a file is missing or damaged.
    """
    source, target = (_tokenizer(directory / name) for name in FILES)
    return Tokenizers(source, target)


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exceptions
        raise DragomanError(f"{path}: expected a tokenizer to go on with: {error}") from error
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text, which files do not say
    return tokenizer
