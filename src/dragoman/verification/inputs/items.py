"""The options of a comparison, and the texts and recordings with their references in files.

Random inputs are recognized by their description. Neither PyTorch nor ONNX is imported, so that a
report can be written without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import read_examples, read_lines

AUDIO_SUFFIXES = frozenset(
    {".3gp", ".aac", ".aif", ".aiff", ".amr", ".au", ".caf", ".flac", ".m4a", ".mka", ".mp3"}
    | {".mp4", ".oga", ".ogg", ".opus", ".w64", ".wav", ".webm", ".wma"}
)


@dataclass(frozen=True)
class Comparison:
    """The options of a comparison."""

    inputs: Path | None = None
    """A file of texts, one per line, references after tabs; or a directory of audio clips, or a
    list of them, transcripts after tabs; None: the sources of `references`, the checkpoint's
    held-out data, or, if there is neither, a spoken sentence or random tokens."""
    limit: int | None = None
    """The maximum number of inputs; None: all."""
    references: Path | None = None
    """A file whose lines are a source, a tab and a reference, or only references, one for each
    input; None: the references after tabs in `inputs`, if every line has one."""
    metrics: Sequence[str] | None = None
    """Names from `metrics.METRIC_NAMES`, the most important one first; None: the default metrics of
    the model's task."""
    source_language: str | None = None
    target_language: str | None = None
    """`source_language` and `target_language`: languages of a multilingual model; None: its
    defaults."""


@dataclass(frozen=True)
class Item:
    """A text or a recording to compare on."""

    source: str | Path
    origin: str
    """The place for a reader, such as "held_out.tsv, line 17" or "clips/a.flac"."""
    references: tuple[str, ...] = ()
    """Every text that counts as right; empty if unknown."""
    line: int = 0
    """The line of the references in their file; the first if there are several."""

    @property
    def key(self) -> str | Path:
        """A key that is equal for items with the same source."""
        return self.source.resolve() if isinstance(self.source, Path) else self.source


def text_items(file: Path) -> list[Item]:
    """Read the lines of a file of texts, with references after tabs."""
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
    """Find the audio files of a directory, a single audio file, or the files of a list.

    A list has a path a line, relative to the list, with transcripts after tabs.
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
    if not all(reference.strip() for reference in references):
        raise DragomanError(f"{file}, line {line}: expected a reference after the tab, found none")


Member = TypeVar("Member")


@dataclass(frozen=True)
class ItemFile:
    """The items of a file, to compare on."""

    comparison: Comparison
    file: Path
    """A file of texts, an audio file or a directory of audio."""
    items: Sequence[Item]
    references: Path | None
    """The file of the items' references, if every item has one."""

    def origin_of_references(self, count: int) -> str:
        """Describe where references are from for the record, if so many items are compared."""
        assert self.references is not None
        everything = count == len(self.items)
        part = "" if everything else f", {count} of {len(self.items)} lines"
        return f"{self.references.name}{part}"


def spread(members: Sequence[Member], limit: int | None) -> list[Member]:
    """Select at most so many members, spread evenly; None: all."""
    if limit is None or limit >= len(members):
        return list(members)
    return [members[i * len(members) // limit] for i in range(limit)]


def described(file: Path, count: int, chosen: int) -> str:
    """Describe for the record which lines of a file are compared on."""
    part = "" if chosen == count else f", {chosen} of them spread evenly"
    return f"{file.name}, {count} lines{part}"


@dataclass(frozen=True)
class ReferenceFile:
    """A file of references, with or without sources."""

    path: Path
    pairs: Sequence[Item] | None
    """Sources with their references, by line; None: there are no sources."""
    lines: Sequence[str]
    """Only references, one for each input; empty if there are sources."""

    @classmethod
    def read(cls, path: Path, *, audio: bool) -> ReferenceFile:
        """Read a file of references."""
        lines = read_lines(path)
        if not lines or any("\t" in line for line in lines):
            return cls(path, pair_items(path, audio=audio), ())
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise DragomanError(f"{path}, line {number}: expected a reference, found none")
        return cls(path, None, lines)

    def given_to(self, items: Sequence[Item], inputs: Path) -> list[Item]:
        """Add references to items.

        They are those of the same line if the sources are the same line by line, or the file has
        none; else all references of the same source, if any.

        Raises:
            DragomanError: the file has no sources, and not a reference for each item.
        """
        if self.pairs is not None:
            found = _of_sources(self.pairs, items)
        elif len(items) == len(self.lines):
            found = [Item("", "", (line,), n) for n, line in enumerate(self.lines, start=1)]
        else:
            raise DragomanError(
                f"{self.path}: expected {len(items)} references, one for each input of {inputs}, "
                f"or lines of a source, a tab and a reference; found {len(self.lines)} lines "
                "without tabs"
            )
        return [
            replace(item, references=reference.references, line=reference.line)
            for item, reference in zip(items, found, strict=True)
        ]


def _of_sources(pairs: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    """Find the pair of each item: of repeated sources the one on the same line, or else all.

    The pair of an item that is not among them has no references.
    """
    if [pair.key for pair in pairs] == [item.key for item in items]:
        return list(pairs)
    known: dict[str | Path, Item] = {}
    for pair in pairs:
        first = known.setdefault(pair.key, pair)
        every = dict.fromkeys((*first.references, *pair.references))
        known[pair.key] = replace(first, references=tuple(every))
    return [known.get(item.key, Item("", "")) for item in items]


def pair_items(file: Path, *, audio: bool) -> list[Item]:
    """Read sources, if `audio` paths relative to the file, and references, with tabs between."""
    items = text_items(file)
    for item in items:
        if not item.references:
            raise DragomanError(
                f"{file}, line {item.line}: expected a source, a tab and a reference, found no tab"
            )
    if not audio:
        return items
    return [replace(item, source=file.parent / item.source) for item in items]


@dataclass(frozen=True)
class References:
    """Sources with references, whose probability is compared."""

    origin: str
    pairs: Sequence[tuple[Any, Any]]
    """As `Model.score` takes them; a source with several references is in several pairs."""
    lines: Sequence[int]
    """The line of the file that each pair is from."""
    source_language: str | None = None

    @classmethod
    def of(
        cls, items: Sequence[Item], origin: str, source_language: str | None = None
    ) -> References:
        """Take the references of items that all have some."""
        numbered = [(i.line, (i.source, reference)) for i in items for reference in i.references]
        lines, pairs = zip(*numbered, strict=True)
        return cls(origin, list(pairs), lines, source_language)

    def spread(self, limit: int | None) -> References:
        """Select at most so many pairs, spread evenly; None: all."""
        if limit is None or limit >= len(self.pairs):
            return self
        chosen = spread(range(len(self.pairs)), limit)
        return replace(
            self,
            origin=f"{self.origin}, {limit} of {len(self.pairs)} pairs",
            pairs=[self.pairs[i] for i in chosen],
            lines=[self.lines[i] for i in chosen],
        )


def read_references(file: Path, *, audio: bool, ids: bool) -> References:
    """Read a file whose lines are a source and its references, with tabs between.

    Args:
        ids: references, and sources that are not audio, are token ids separated by spaces
    """
    references = References.of(pair_items(file, audio=audio), file.name)
    if not ids:
        return references
    try:
        pairs = [(s if audio else _token_ids(s), _token_ids(t)) for s, t in references.pairs]
    except ValueError as error:
        raise DragomanError(
            f"{file}: expected token ids separated by spaces, for a model without tokenizers: "
            f"{error}"
        ) from error
    return replace(references, pairs=pairs)


def _token_ids(text: str) -> list[int]:
    return list(map(int, text.split()))
