"""A file of references: sources and references, or references alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import read_lines

from .items import Item, text_items


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
            DragomanError: the file cannot be read, or has sources without references.
        """
        lines = read_lines(path)
        if lines and not any("\t" in line for line in lines):
            return cls(path, None, lines)
        return cls(path, pair_items(path, audio=audio), ())

    def given_to(self, items: Sequence[Item], inputs: Path) -> list[Item]:
        """Items with the references of the same source, or of the same line; those that have none
        here get none.

        Args:
            inputs: what the items are from, for the error

        Raises:
            DragomanError: there are more or fewer references alone than items.
        """
        if self.pairs is not None:
            known = {pair.key: pair for pair in self.pairs}
            found = [known.get(item.key) for item in items]
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


def pair_items(file: Path, *, audio: bool) -> list[Item]:
    """The lines of a file of sources and references, with tabs between.

    Args:
        audio: sources are paths, relative to the file

    Raises:
        DragomanError: the file cannot be read, or a line has no reference.
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
