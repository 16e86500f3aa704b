"""Lines of standard input, as they arrive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

Line = str | UnicodeDecodeError
"""A line of input, or why it cannot be read."""


def arriving_lines(file: BinaryIO) -> Iterator[list[Line]]:
    """Groups of lines as they arrive, so that a pipe is answered without delay and a file is
    decoded in large batches."""
    rest = b""
    while chunk := os.read(file.fileno(), 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [_decoded(line) for line in lines]
    if rest:
        yield [_decoded(rest)]


def in_parts(groups: Iterable[Sequence[Line]], most: int) -> Iterator[Sequence[Line]]:
    """The same groups, those of more than `most` lines in several."""
    for lines in groups:
        for begin in range(0, len(lines), most):
            yield lines[begin : begin + most]


def unreadable(error: UnicodeDecodeError) -> str:
    """Why a line cannot be read."""
    return f"expected UTF-8 text: {error.reason} at byte {error.start}"


def token_ids(text: str) -> list[int] | None:
    """The token ids that a line of a bundle without tokenizers states; None: it is not one."""
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        return None


IDS_EXPECTED = "expected token ids separated by spaces: this bundle has no tokenizers"


def _decoded(line: bytes) -> Line:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return error
