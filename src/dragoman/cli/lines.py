"""Lines of standard input, as they arrive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from dragoman.source_lines import IDS_EXPECTED, Line, decoded_line, token_ids, unreadable

__all__ = ["IDS_EXPECTED", "Line", "arriving_lines", "in_parts", "token_ids", "unreadable"]


def arriving_lines(file: BinaryIO) -> Iterator[list[Line]]:
    """Groups of lines as they arrive, so that a pipe is answered without delay and a file is
    decoded in large batches.
    """
    rest = b""
    while chunk := os.read(file.fileno(), 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [decoded_line(line) for line in lines]
    if rest:
        yield [decoded_line(rest)]


def in_parts(groups: Iterable[Sequence[Line]], most: int) -> Iterator[Sequence[Line]]:
    """The same groups, those of more than `most` lines in several."""
    for lines in groups:
        for begin in range(0, len(lines), most):
            yield lines[begin : begin + most]
