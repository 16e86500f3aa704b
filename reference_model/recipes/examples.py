"""Examples to train and score on, the files that hold them, and the cleaning of parallel text.

Cleaning drops unusable and suspect pairs, and counts them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import write_whole
from dragoman.files.text_lines import undecodable

from ..settings import check_settings


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
    return list(_lines(path))


def _lines(path: Path) -> Iterator[str]:
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    # The decoder does not count a byte order mark.
                    at = offset + error.start + len(line) - len(error.object)
                    problem = undecodable(error.object[error.start], at, number)
                    raise DragomanError(f"{path}: {problem}") from error
                yield text.removesuffix("\n").removesuffix("\r")
                offset += len(line)
    except FileNotFoundError as error:
        raise DragomanError(f"expected a file of examples, found nothing at {path}") from error
    except OSError as error:
        raise DragomanError(f"{path}: expected a file of examples: {error.strerror}") from error


def _without_blank_end(lines: Iterable[str]) -> Iterator[str]:
    """Leave out the lines at the end that have nothing but spaces."""
    blank = []
    for line in lines:
        blank.append(line)
        if line.strip(" "):
            yield from blank
            blank.clear()


def read_examples(path: Path) -> list[Example]:
    """Read a file in the format of `write_examples`; a line without tabs has no references.

    Raises:
        DragomanError: the file is missing, is not UTF-8, or has a line without a source text.
    """
    examples = []
    for number, line in enumerate(_without_blank_end(_lines(path)), start=1):
        source, *references = line.split("\t")
        if not source:
            raise DragomanError(f"{path}, line {number}: expected a source text, found none")
        examples.append(Example(source, tuple(references)))
    return examples


def read_pairs(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Read pairs of source and target. Lines at the end without text are no pairs.

    Args:
        files: one file with a tab between source and target on each line; or a file of sources and
            one of targets, line by line

    Raises:
        DragomanError: a file is missing or not UTF-8, a line does not have exactly one tab, the
            files have unequal numbers of lines, or there are more than two files.
    """
    match files:
        case [file]:
            lines = _without_blank_end(_lines(file))
            return [_split(line, file, number) for number, line in enumerate(lines, start=1)]
        case [sources, targets]:
            pair = read_lines(sources), read_lines(targets)
            blank_end = max(len(list(_without_blank_end(side))) for side in pair)
            pair = pair[0][:blank_end], pair[1][:blank_end]
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
        found = "; ".join(filter(None, (describe(0, dropped), remark_on_ratio(0, dropped))))
        raise DragomanError(f"expected pairs to train on, found none: {found}")
    return [Example(source, (target,)) for source, target in repeated], dict(dropped)


def describe(kept: int, dropped: Mapping[str, int]) -> str:
    """Return a summary, as in "27 of 29 pairs kept (1 an empty side, 1 too long)"."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    read = kept + sum(dropped.values())
    return f"{kept:,} of {read:,} pairs kept" + (f" ({reasons})" if reasons else "")


def remark_on_ratio(kept: int, dropped: Mapping[str, int]) -> str:
    """Return a warning if unequal lengths are why more than a tenth of the pairs is dropped.

    It is empty otherwise.
    """
    unequal, read = dropped.get(UNEQUAL, 0), kept + sum(dropped.values())
    if 10 * unequal <= read:
        return ""
    return (
        f"{unequal:,} of {read:,} pairs ({unequal / read:.0%}) are left out because their lengths "
        'are too unequal; if they are translations, raise "ratio" in the section "cleaning", or '
        "set it to null"
    )


def _reason(pair: tuple[str, str], rules: Cleaning) -> str | None:
    shorter, longer = sorted(map(len, pair))
    if shorter == 0:
        return EMPTY
    if rules.longest is not None and longer > rules.longest:
        return TOO_LONG
    if rules.ratio is not None and longer > SHORT and longer > rules.ratio * shorter:
        return UNEQUAL
    return None


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
