"""The texts or recordings to compare on, each with where it is from and its references, and which
part of them is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dragoman.comparison import Comparison
from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import read_examples

AUDIO_SUFFIXES = frozenset(
    {".aif", ".aiff", ".au", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav"}
)


@dataclass(frozen=True)
class Item:
    """
    Attributes:
        source: a text; or the path of a recording
        origin: where people find it, such as "held_out.tsv, line 17" or "clips/a.flac"
        references: every text that counts as right; none: unknown
        line: of the file that the references are from, the first if they are from several
    """

    source: str | Path
    origin: str
    references: tuple[str, ...] = ()
    line: int = 0

    @property
    def key(self) -> str | Path:
        """What is equal of items with the same source."""
        return self.source.resolve() if isinstance(self.source, Path) else self.source


def text_items(file: Path) -> list[Item]:
    """The lines of a file of texts, with references after tabs.

    Raises:
        DragomanError: the file cannot be read, a line has no text, or a reference is empty.
    """
    examples = read_examples(file)
    if not examples:
        raise DragomanError(f"{file}: expected at least one line, found none")
    items = []
    for number, example in enumerate(examples, start=1):
        _refuse_empty(example.references, file, number)
        origin = f"{file.name}, line {number}"
        items.append(Item(example.source, origin, example.references, number))
    return items


def recording_items(path: Path) -> list[Item]:
    """The audio files in a directory, a single audio file, or the files that a list names: a path a
    line, relative to the list, with transcripts after tabs.

    Raises:
        DragomanError: there are none, the list cannot be read, or a transcript is empty.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in AUDIO_SUFFIXES)
        items = [Item(file, f"{path.resolve().name}/{file.name}") for file in files]
    elif path.suffix.lower() in AUDIO_SUFFIXES:
        items = [Item(path, path.name)]
    else:
        items = _listed(path)
    if not items:
        raise DragomanError(f"{path}: expected at least one audio file, found none")
    return items


def _listed(file: Path) -> list[Item]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DragomanError(
            f"{file}: expected a directory of audio files, or a list of them: {error}"
        ) from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            name, *transcripts = line.removesuffix("\r").split("\t")
            _refuse_empty(transcripts, file, number)
            found.append(Item(file.parent / name, name, tuple(transcripts), number))
    return found


def _refuse_empty(references: Sequence[str], file: Path, line: int) -> None:
    """An empty reference is rather a tab too many than what an output should be.

    Raises:
        DragomanError: a reference has nothing but spaces.
    """
    if not all(reference.strip() for reference in references):
        raise DragomanError(f"{file}, line {line}: expected a reference after the tab, found none")


Member = TypeVar("Member")


@dataclass(frozen=True)
class Given:
    """
    Attributes:
        asked: by the user
        file: of texts, or of audio; or a directory of audio
        references: what the references of the items are from, if every item has one
    """

    asked: Comparison
    file: Path
    items: Sequence[Item]
    references: Path | None

    def origin_of_references(self, count: int) -> str:
        """For the record, if so many items are compared."""
        assert self.references is not None
        everything = count == len(self.items)
        part = "" if everything else f", {count} of {len(self.items)} lines"
        return f"{self.references.name}{part}"


def spread(members: Sequence[Member], limit: int | None) -> list[Member]:
    """At most so many, spread evenly; None: all."""
    if limit is None or limit >= len(members):
        return list(members)
    return [members[i * len(members) // limit] for i in range(limit)]


def described(file: Path, count: int, chosen: int) -> str:
    """What lines of a file are compared on, for the record."""
    part = "" if chosen == count else f", {chosen} of them spread evenly"
    return f"{file.name}, {count} lines{part}"
