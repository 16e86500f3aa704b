"""The interface of tokenizers, and words of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from dragoman.errors import shown

from ...decoding.results import RejectedError


class UnknownSymbolsError(ValueError):
    """A text has symbols that the tokenizer has no token for."""

    def __init__(self, symbols: Sequence[str]) -> None:
        named = ", ".join(map(shown, symbols[:5])) + (", ..." if len(symbols) > 5 else "")
        super().__init__(f"unknown to this model: {named}")


class TokenizerError(RejectedError):
    """A tokenizer fails, because its file is damaged."""


class TextStream(Protocol):
    """Decodes tokens one at a time; the pieces and the rest add up to the text of all tokens."""

    def step(self, token: int) -> str:
        """Return the text that a token adds; empty while a character is incomplete."""

    def rest(self) -> str:
        """Return the text that is held back; an incomplete character at the end is U+FFFD."""


class EncodedSource(NamedTuple):
    """The token ids of a source text."""

    tokens: list[int]
    """Tokens of the text, with the special tokens around it."""
    unknown: str = ""
    """Characters of the text that became the unknown token, in order; none for a vocabulary of
    whole words."""


class EncodedTarget(NamedTuple):
    """The token ids of a target text."""

    before: list[int]
    """Special tokens that the tokenizer adds before a text, as for BART."""
    tokens: list[int]


class Codec(Protocol):
    """A tokenizer.

    Special tokens in a text are read as such or, with `split_special_tokens`, as plain text.
    Methods raise a `TokenizerError` if the tokenizer fails, and those that take a text an
    `UnknownSymbolsError` if symbols have no token and there is none for unknown ones.
    """

    def encode_source(
        self, text: str, most: int | None = None, *, split_special_tokens: bool = False
    ) -> EncodedSource:
        """Return the token ids of a text; empty if nothing is left of it but the template.

        The text must not contain lone surrogates.

        Args:
            most: maximum number of tokens; further tokens of the text are cut, special tokens kept
        """

    @property
    def template_tokens(self) -> Sequence[int]:
        """The special tokens that `encode_source` adds to a text."""

    def words(
        self, text: str, *, split_special_tokens: bool = False, each_token: bool = False
    ) -> Words:
        """Return the words of a text and the word of each token of `encode_source`.

        Words are separated by white space. With `each_token`, and for a tokenizer that joins tokens
        with spaces, tokens are words.
        """

    def encode_target(self, text: str, *, split_special_tokens: bool = False) -> EncodedTarget:
        """Return the token ids of a target text."""

    def count(self, text: str, end: int, *, split_special_tokens: bool = False) -> int:
        """Count the tokens, without the template, that end within the first `end` characters.

        It may be too low if the file has no character offsets.
        """

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode tokens to a text, without special tokens unless `skip_special_tokens` is False."""

    def piece(self, token: int) -> str | None:
        """Return a token as the vocabulary spells it; None without a token."""

    def token(self, piece: str) -> int | None:
        """Return the id of a token by its piece; None if there is none."""

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token; None if there is none."""

    @property
    def special_tokens(self) -> Mapping[int, str]:
        """The special tokens by id."""

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """Return a decoder of a stream of tokens."""


Span = tuple[int, int]
"""Start and end (exclusive) of a part of a text, in characters."""


class Words(NamedTuple):
    """The words of a text."""

    words: list[str]
    """Words in order."""
    of_token: list[int | None]
    """Index of the word of each token; None for special tokens and white space."""


def words_of_spans(text: str, spans: Sequence[Span | None]) -> Words:
    """Return the words of a text whose tokens have these spans."""
    return Words(text.split(), words_at(text, spans))


def tokens_as_words(text: str, spans: Sequence[Span | None]) -> Words:
    """Return the tokens of a text as its words, except for white space."""
    words: list[str] = []
    of_token: list[int | None] = []
    for span in spans:
        part = text[slice(*span)].strip() if span else ""
        of_token.append(len(words) if part else None)
        words += [part] * bool(part)
    return Words(words, of_token)


def words_at(text: str, spans: Iterable[Span | None]) -> list[int | None]:
    """Return the index in `text.split()` of the word with the last character of each span.

    It is None for a missing or empty span, or white space.
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
