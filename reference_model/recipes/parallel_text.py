"""Files of parallel text: pairs of sentences that are translations of each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import DragomanError

from .examples import read_lines


def read_pairs(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Sources and targets: of one file whose lines have a tab between them, or of two files, whose
    lines belong together by their numbers.

    Raises:
        DragomanError: a file is missing or not UTF-8, a line has no tab or several, the files have
            unequal numbers of lines, or there are more than two.
    """
    match files:
        case [file]:
            return [_split(line, file, n) for n, line in enumerate(read_lines(file), start=1)]
        case [sources, targets]:
            pair = read_lines(sources), read_lines(targets)
            if len(pair[0]) != len(pair[1]):
                raise DragomanError(
                    f"expected as many targets as sources, found {len(pair[0])} lines in {sources} "
                    f"and {len(pair[1])} in {targets}"
                )
            return list(zip(*pair, strict=True))
    raise DragomanError(
        "expected one file of pairs with tabs between them, or a file of sources and one of "
        f"targets, found {len(files)} files"
    )


def _split(line: str, file: Path, number: int) -> tuple[str, str]:
    source, *rest = line.split("\t")
    if len(rest) != 1:
        raise DragomanError(
            f"{file}, line {number}: expected a source, a tab and a target, found {len(rest)} tabs"
        )
    return source, rest[0]
