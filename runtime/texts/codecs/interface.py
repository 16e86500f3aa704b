"""The interface of a bundle's tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ...decoding.rejection import RejectedError
from .spans import Words


class UnknownSymbolsError(ValueError):
    """A text with symbols that the tokenizer has no token for."""

    def __init__(self, symbols: Sequence[str]) -> None:
        shown = ", ".join(repr(s) for s in symbols[:5]) + (", ..." if len(symbols) > 5 else "")
        super().__init__(f"unknown to this model: {shown}")


class TokenizerError(RejectedError):
    """A tokenizer that fails on a text or on tokens, because its file is damaged."""


class TextStream(Protocol):
    """Decodes tokens one at a time. The pieces add up to the text of all tokens, except for an
    incomplete character at the end.
    """

    def step(self, token: int) -> str:
        """The text that this token adds; empty while a character is incomplete.

        Raises:
            TokenizerError: the tokenizer fails on it.
        """


class EncodedTarget(NamedTuple):
    """The token ids of a target text.

    Attributes:
        before: special tokens that the tokenizer puts before a text, as BART's does
        tokens: of the text itself; no special tokens
    """

    before: list[int]
    tokens: list[int]


class Codec(Protocol):
    """A tokenizer. Texts never encode to special tokens, and decoded texts never show them."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, which must not contain lone surrogates; empty if only special
        tokens are left after normalization.

        Raises:
            UnknownSymbolsError: the text has symbols without a token, and the tokenizer has no
                token for unknown ones.
            TokenizerError: the tokenizer fails on it.
        """

    def words(self, text: str) -> Words:
        """The words of a text, and which of them each token of `encode` belongs to. They have white
        space between them; of a tokenizer whose texts are tokens with spaces between, they are its
        tokens.

        Raises:
            UnknownSymbolsError, TokenizerError: as for `encode`.
        """

    def encode_target(self, text: str) -> EncodedTarget:
        """The token ids of a text that a model is to produce.

        Raises:
            UnknownSymbolsError, TokenizerError: as for `encode`.
        """

    def count(self, text: str, end: int) -> int:
        """How many tokens of a text, without special tokens, end within its first `end` characters.

        Where the file does not tell, less than all of them.

        Raises:
            UnknownSymbolsError, TokenizerError: as for `encode`.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """
        Raises:
            TokenizerError: the tokenizer fails on them.
        """

    def piece(self, token: int) -> str | None:
        """A token as the tokenizer's vocabulary writes it; None for ids that it does not have."""

    @property
    def unknown(self) -> int | None:
        """The token that stands for what the vocabulary does not have; None if there is none."""

    def stream(self) -> TextStream: ...
