"""A file of references: sources and references, or references alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import read_lines

from .items import Item, spread, text_items


@dataclass(frozen=True)
class ReferenceFile:
    """
    Attributes:
        pairs: sources with their references, by line; None: there are no sources
        lines: references alone, one for each input; none if there are sources
    """

    path: Path
    pairs: Sequence[Item] | None
    lines: Sequence[str]

    @classmethod
    def read(cls, path: Path, *, audio: bool) -> ReferenceFile:
        """
        Args:
            audio: sources are paths, relative to the file

        Raises:
            DragomanError: the file cannot be read, has sources without references, or a reference
                that is empty.
        """
        lines = read_lines(path)
        if not lines or any("\t" in line for line in lines):
            return cls(path, pair_items(path, audio=audio), ())
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise DragomanError(f"{path}, line {number}: expected a reference, found none")
        return cls(path, None, lines)

    def given_to(self, items: Sequence[Item], inputs: Path) -> list[Item]:
        """Items with the references of the same line if the sources are the same line by line, or
        there are none; else with all references of the same source. Those that have none here get
        none.

        Args:
            inputs: what the items are from, for the error

        Raises:
            DragomanError: there are more or fewer references alone than items.
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
            dataclasses.replace(
                item,
                references=() if reference is None else reference.references,
                line=0 if reference is None else reference.line,
            )
            for item, reference in zip(items, found, strict=True)
        ]


def _of_sources(pairs: Sequence[Item], items: Sequence[Item]) -> list[Item | None]:
    """The pair of each item. A source that is there several times may have other references each
    time: lines tell which, or else all of them count.
    """
    if [pair.key for pair in pairs] == [item.key for item in items]:
        return list(pairs)
    known: dict[str | Path, Item] = {}
    for pair in pairs:
        first = known.setdefault(pair.key, pair)
        every = dict.fromkeys((*first.references, *pair.references))
        known[pair.key] = dataclasses.replace(first, references=tuple(every))
    return [known.get(item.key) for item in items]


def pair_items(file: Path, *, audio: bool) -> list[Item]:
    """The lines of a file of sources and references, with tabs between.

    Args:
        audio: sources are paths, relative to the file

    Raises:
        DragomanError: the file cannot be read, or a line has no reference, or an empty one.
    """
    items = text_items(file)
    for item in items:
        if not item.references:
            raise DragomanError(
                f"{file}, line {item.line}: expected a source, a tab and a reference, found no tab"
            )
    if not audio:
        return items
    return [dataclasses.replace(item, source=file.parent / item.source) for item in items]


@dataclass(frozen=True)
class References:
    """Sources with targets that are right.

    Attributes:
        origin: the file, for the record and for errors
        pairs: as `Model.score` takes them; a source with several references is in several pairs
        lines: the line of the file that each pair is from
        source_language: of texts, for a multilingual model
    """

    origin: str
    pairs: Sequence[tuple[Any, Any]]
    lines: Sequence[int]
    source_language: str | None = None

    @classmethod
    def of(
        cls, items: Sequence[Item], origin: str, source_language: str | None = None
    ) -> References:
        """Those of items that all have some."""
        numbered = [(i.line, (i.source, reference)) for i in items for reference in i.references]
        lines, pairs = zip(*numbered, strict=True)
        return cls(origin, list(pairs), lines, source_language)

    def spread(self, limit: int | None) -> References:
        """At most so many pairs, spread evenly; None: all."""
        if limit is None or limit >= len(self.pairs):
            return self
        chosen = spread(range(len(self.pairs)), limit)
        return dataclasses.replace(
            self,
            origin=f"{self.origin}, {limit} of {len(self.pairs)} pairs",
            pairs=[self.pairs[i] for i in chosen],
            lines=[self.lines[i] for i in chosen],
        )


def read_references(file: Path, *, audio: bool, ids: bool) -> References:
    """A file whose lines are a source and its references, with tabs between.

    Args:
        audio: sources are paths, relative to the file
        ids: references, and sources that are not audio, are token ids separated by spaces

    Raises:
        DragomanError: the file cannot be read, or a line has no reference.
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
    return dataclasses.replace(references, pairs=pairs)


def _token_ids(text: str) -> list[int]:
    return [int(word) for word in text.split()]
