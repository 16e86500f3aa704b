"""The interface of a bundle's tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class UnknownSymbolsError(ValueError):
    """A text with symbols that the tokenizer has no token for."""

    def __init__(self, symbols: Sequence[str]) -> None:
        shown = ", ".join(repr(s) for s in symbols[:5]) + (", ..." if len(symbols) > 5 else "")
        super().__init__(f"unknown to this model: {shown}")


class TextStream(Protocol):
    """Decodes tokens one at a time. The pieces add up to the text of all tokens, except for an
    incomplete character at the end."""

    def step(self, token: int) -> str:
        """The text that this token adds; empty while a character is incomplete."""


class Codec(Protocol):
    """A tokenizer. Texts never encode to special tokens, and decoded texts never show them."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, which must not contain lone surrogates; empty if only special
        tokens are left after normalization.

        Raises:
            UnknownSymbolsError: the text has symbols without a token, and the tokenizer has no
                token for unknown ones.
        """

    def decode(self, tokens: Sequence[int]) -> str: ...

    def stream(self) -> TextStream: ...
