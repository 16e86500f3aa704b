"""Parts of a text and its words, which have white space between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Span = tuple[int, int]
"""The first character of a part, and the one after its last."""


class Words(NamedTuple):
    """
    Attributes:
        words: of a text
        of_token: the word, counted from 0, that each of its tokens belongs to; None of special
            tokens, and of white space
    """

    words: list[str]
    of_token: list[int | None]


def words_of_spans(text: str, spans: Sequence[Span | None]) -> Words:
    """The words of a text where tokens have these parts of it."""
    return Words(text.split(), words_at(text, spans))


def tokens_as_words(text: str, spans: Sequence[Span | None]) -> Words:
    """Each token is a word, but for white space."""
    words: list[str] = []
    of_token: list[int | None] = []
    for span in spans:
        part = text[slice(*span)].strip() if span else ""
        of_token.append(len(words) if part else None)
        words += [part] * bool(part)
    return Words(words, of_token)


def words_at(text: str, spans: Iterable[Span | None]) -> list[int | None]:
    """The word of `text.split()`, counted from 0, that each part belongs to: that of its last
    character. None: it is None, empty, or white space.
    """
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
