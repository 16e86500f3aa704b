"""Parallel text: reading pairs of texts that translate each other, and cleaning them.

Cleaning drops unusable and suspect pairs, and counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError, shown

from ..settings import check_settings
from .examples import Example, read_lines


def read_pairs(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Read pairs of source and target.

    Args:
        files: one file with a tab between source and target on each line; or a file of sources and
            one of targets, line by line

    Raises:
        DragomanError: a file is missing or not UTF-8, a line does not have exactly one tab, the
            files have unequal numbers of lines, or there are more than two files.
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


EMPTY, DUPLICATE = "an empty side", "a duplicate"
TOO_LONG, UNEQUAL = "too long", "unequal lengths"

SHORT = 20
"""The `ratio` of lengths is not checked up to this many characters."""


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """The rules of cleaning, in the order in which they are applied.

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    duplicates: bool = False
    """Whether to keep repeated pairs."""
    longest: int | None = 1000
    """Maximum number of characters of the longer side; None: unlimited."""
    ratio: float | None = 4.0
    """Maximum ratio of the lengths, longer to shorter, in characters. It is checked if the longer
    side has more than 20; None: unlimited."""

    def __post_init__(self) -> None:
        check_settings(self, self._out_of_range)

    def _out_of_range(self) -> Iterator[str]:
        if self.longest is not None and self.longest < 1:
            yield f"longest: expected at least 1, found {shown(self.longest)}"
        if self.ratio is not None and self.ratio < 1:
            yield f"ratio: expected at least 1, found {shown(self.ratio)}"


def clean(
    pairs: Sequence[tuple[str, str]], rules: Cleaning
) -> tuple[list[Example], dict[str, int]]:
    """Drop pairs that break the rules.

    Args:
        pairs: source and target texts

    Returns:
        the remaining pairs, in their order, and the number of dropped pairs by reason

    Raises:
        DragomanError: no pair remains.
    """
    kept: dict[tuple[str, str], None] = {}
    repeated: list[tuple[str, str]] = []
    dropped: Counter[str] = Counter()
    for raw_source, raw_target in pairs:
        pair = (" ".join(raw_source.split()), " ".join(raw_target.split()))
        reason = _reason(pair, rules)
        if reason is None and pair in kept and not rules.duplicates:
            reason = DUPLICATE
        if reason is not None:
            dropped[reason] += 1
            continue
        kept[pair] = None
        repeated.append(pair)
    if not repeated:
        raise DragomanError(f"expected pairs to train on, found none: {describe(0, dropped)}")
    return [Example(source, (target,)) for source, target in repeated], dict(dropped)


def describe(kept: int, dropped: Mapping[str, int]) -> str:
    """Return a summary, as in "27 of 29 pairs kept (1 an empty side, 1 too long)"."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    read = kept + sum(dropped.values())
    return f"{kept:,} of {read:,} pairs kept" + (f" ({reasons})" if reasons else "")


def _reason(pair: tuple[str, str], rules: Cleaning) -> str | None:
    shorter, longer = sorted(map(len, pair))
    if shorter == 0:
        return EMPTY
    if rules.longest is not None and longer > rules.longest:
        return TOO_LONG
    if rules.ratio is not None and longer > SHORT and longer > rules.ratio * shorter:
        return UNEQUAL
    return None
