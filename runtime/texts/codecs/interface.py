"""What every tokenizer of a bundle can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class UnknownSymbolsError(ValueError):
    """A text with symbols that the tokenizer has no token for."""

    def __init__(self, symbols: Sequence[str]) -> None:
        shown = ", ".join(repr(s) for s in symbols[:5]) + (", ..." if len(symbols) > 5 else "")
        super().__init__(f"unknown to this model: {shown}")


class TextStream(Protocol):
    """Decodes tokens one by one: the pieces joined are the text of them all, less what ends in an
    incomplete symbol."""

    def step(self, token: int) -> str:
        """The text that this token adds; empty while a symbol is incomplete."""


class Codec(Protocol):
    """A tokenizer. Special tokens are never made of what is in a text, and never shown."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text without lone surrogates; empty if nothing is left of it.

        Raises:
            UnknownSymbolsError: the text has symbols without a token, and the tokenizer has no
                token for unknown ones.
        """

    def decode(self, tokens: Sequence[int]) -> str: ...

    def stream(self) -> TextStream: ...
