"""Parts of a text and its words, which have white space between them."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""The first character of a part, and the one after its last."""


def words_at(text: str, spans: Iterable[Span | None]) -> list[int | None]:
    """The word of `text.split()`, counted from 0, that each part belongs to: that of its last
    character. None: it is None, empty, or white space."""
    numbers: list[int | None] = []
    word, within = -1, False
    for character in text:
        blank = character.isspace()
        word += not blank and not within
        within = not blank
        numbers.append(None if blank else word)
    found: list[int | None] = []
    for span in spans:
        part = numbers[slice(*span)] if span else []
        found.append(next((number for number in reversed(part) if number is not None), None))
    return found
