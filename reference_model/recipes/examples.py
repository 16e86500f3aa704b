"""Examples to train and score on, and the files that hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import write_whole


@dataclass(frozen=True)
class Example:
    """A source text and every target text that counts as correct."""

    source: str
    references: tuple[str, ...]


def write_examples(examples: Iterable[Example], path: Path) -> None:
    """Write one example per line: the source and all references, separated by tabs.

    Raises:
        DragomanError: a text contains a tab or a line break, or the file cannot be written.
    """
    lines = []
    for example in examples:
        texts = (example.source, *example.references)
        if any(symbol in text for text in texts for symbol in "\t\n\r"):
            raise DragomanError(
                f"expected texts without tabs and line breaks, found {shown(texts)}"
            )
        lines.append("\t".join(texts) + "\n")
    write_whole(path, lambda partial: partial.write_text("".join(lines), "utf-8", newline="\n"))


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, without line ends.

    Raises:
        DragomanError: the file is missing or is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            return [line.removesuffix("\n").removesuffix("\r") for line in file]
    except FileNotFoundError as error:
        raise DragomanError(f"expected a file of examples, found nothing at {path}") from error
    except OSError as error:
        raise DragomanError(f"{path}: expected a file of examples: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DragomanError(f"{path}: expected UTF-8 text: {error}") from error


def read_examples(path: Path) -> list[Example]:
    """Read a file in the format of `write_examples`; a line without tabs has no references.

    Raises:
        DragomanError: the file is missing, is not UTF-8, or has a line without a source text.
    """
    examples = []
    for number, line in enumerate(read_lines(path), start=1):
        source, *references = line.split("\t")
        if not source:
            raise DragomanError(f"{path}, line {number}: expected a source text, found none")
        examples.append(Example(source, tuple(references)))
    return examples


def bucket(key: str) -> int:
    """Return a number in [0, 100) that assigns an example to a part of the data.

    It is the first eight bytes of the key's SHA-256, as a big-endian number modulo 100.

    Args:
        key: the text that identifies examples of the same part
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100


def chapter_bucket(*, book: int, chapter: int) -> int:
    """Return the bucket of a chapter, the same in every edition of the Bible.

    Args:
        book: counted from 1 in the order of the Protestant canon
    """
    return bucket(f"{book}:{chapter}")
