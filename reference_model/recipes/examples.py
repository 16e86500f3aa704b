"""Examples to train and score on, their files, and the cleaning of parallel text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import write_whole
from dragoman.files.text_lines import undecodable

from ..settings import check_settings


@dataclass(frozen=True)
class Example:
    """A source text and every target text that counts as correct."""

    source: str
    references: tuple[str, ...]


def references_of(examples: Iterable[Example]) -> list[tuple[str, ...]]:
    """Return the references of each example."""
    return [example.references for example in examples]


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
    with reading(path), path.open("rb") as file:
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


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise a `DragomanError` if a file of examples is missing or cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise DragomanError(f"expected a file of examples, found nothing at {path}") from error
    except OSError as error:
        raise DragomanError(f"{path}: expected a file of examples: {error.strerror}") from error


def _without_blank_end(lines: Iterable[str]) -> Iterator[str]:
    blank = []
    for line in lines:
        blank.append(line)
        if line.strip():
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


def read_rows(files: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Read sources with their targets, one row at a time. Rows at the end without text are none.

    Args:
        files: one file of rows, whose texts are separated by tabs; or a file of sources and files
            of targets, line by line

    Raises:
        DragomanError: a file is missing or not UTF-8, or the files have unequal numbers of lines.
    """
    if len(files) == 1:
        yield from (tuple(line.split("\t")) for line in _without_blank_end(_lines(files[0])))
        return
    blank: list[tuple[str, ...]] = []
    for row in zip_longest(*map(_lines, files)):
        blank.append(tuple(row))
        if any(text is not None and text.strip() for text in row):
            if any(text is None for each in blank for text in each):
                raise _unequal(files)
            yield from blank
            blank.clear()


def _unequal(files: Sequence[Path]) -> DragomanError:
    lines, with_text = [], 0
    for file in files:
        lines.append(0)
        for number, line in enumerate(_lines(file), start=1):
            lines[-1] = number
            if line.strip():
                with_text = max(with_text, number)
    source, first = min(lines[0], with_text), files[0]
    file, found = next(
        (file, min(count, with_text))
        for file, count in zip(files, lines, strict=True)
        if min(count, with_text) != source
    )
    return DragomanError(
        f"expected as many targets as sources, found {source} lines in {first} and {found} in "
        f"{file}"
    )


FILES_OF_PAIRS = "one file of pairs with tabs between them, or a file of sources and one of targets"


def read_pairs(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Read pairs of source and target, one at a time; see `read_rows`.

    Raises:
        DragomanError: also if a line of a single file does not have exactly one tab, or there are
            more than two files.
    """
    if not 1 <= len(files) <= 2:
        raise DragomanError(f"expected {FILES_OF_PAIRS}, found {len(files)} files")
    for number, row in enumerate(read_rows(files), start=1):
        if len(row) != 2:
            raise DragomanError(
                f"{files[0]}, line {number}: expected a source, a tab and a target, found "
                f"{len(row) - 1} tabs"
            )
        yield row[0], row[1]


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


class Cleaner:
    """Drops pairs that break the rules, and repeated ones.

    Attributes:
        dropped: the number of dropped pairs by reason
    """

    def __init__(self, rules: Cleaning) -> None:
        self._rules = rules
        self._digests: set[int] = set()
        self.dropped: Counter[str] = Counter()

    def keeps(self, pair: tuple[str, str], prefix: str = "") -> bool:
        """Return whether a pair stays, and count it if it does not.

        Its texts have single spaces. Pairs with another prefix of the source are others.
        """
        reason = _reason(pair, self._rules)
        if reason is None and not self._rules.duplicates:
            text = "\n".join((prefix, *pair)).encode()
            # A set of these numbers takes 80 bytes a pair, whatever the length of the texts.
            digest = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
            if digest in self._digests:
                reason = DUPLICATE
            self._digests.add(digest)
        if reason is not None:
            self.dropped[reason] += 1
        return reason is None

    def check(self, kept: int) -> None:
        """Raise a `DragomanError` that names the reasons if no pair remains."""
        if not kept:
            reasons = describe(0, self.dropped), remark_on_ratio(0, self.dropped)
            raise DragomanError(
                f"expected pairs to train on, found none: {'; '.join(filter(None, reasons))}"
            )


def spaced(pair: tuple[str, str]) -> tuple[str, str]:
    """Return both texts with single spaces."""
    source, target = pair
    return " ".join(source.split()), " ".join(target.split())


def clean(
    pairs: Iterable[tuple[str, str]], rules: Cleaning
) -> tuple[list[Example], dict[str, int]]:
    """Drop pairs that break the rules; return the others, and the number of dropped ones by reason.

    Raises:
        DragomanError: no pair remains.
    """
    cleaner = Cleaner(rules)
    kept = [Example(pair[0], (pair[1],)) for pair in map(spaced, pairs) if cleaner.keeps(pair)]
    cleaner.check(len(kept))
    return kept, dict(cleaner.dropped)


def describe(kept: int, dropped: Mapping[str, int]) -> str:
    """Return a summary, as in "27 of 29 pairs kept (1 an empty side, 1 too long)"."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    read = kept + sum(dropped.values())
    return f"{kept:,} of {read:,} pairs kept" + (f" ({reasons})" if reasons else "")


def remark_on_ratio(kept: int, dropped: Mapping[str, int]) -> str:
    """Return a warning if unequal lengths are why more than a tenth of the pairs is dropped."""
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
    """Return a number in [0, 100) that assigns an example to a part of the data, by a key.

    It is the first eight bytes of the key's SHA-256, as a big-endian number modulo 100.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100


def chapter_bucket(*, book: int, chapter: int) -> int:
    """Return the bucket of a chapter of a book of the Protestant canon, counted from 1."""
    return bucket(f"{book}:{chapter}")


def part_of_chapter(*, book: int, chapter: int) -> Literal["held_out", "validation", "train"]:
    """Return the part of the data that has the verses of a chapter, by its `chapter_bucket`."""
    number = chapter_bucket(book=book, chapter=chapter)
    return "held_out" if number < 5 else "validation" if number < 7 else "train"


WORLD_ENGLISH_BIBLE = """\
The World English Bible is in the public domain: it was dedicated to it by those who worked on it
and is not copyrighted (https://ebible.org/publicdomain.htm). Its name is a trademark of eBible.org,
for faithful copies of the translation."""
