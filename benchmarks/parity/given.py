"""What a user gave to compare on, before a model reads it, and which part of it is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dragoman.comparison import Comparison

from .items import Item

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
