"""Chosen tokens, with the text that each adds to an output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..decoding.results import Token
from ..decoding.streaming import Choice
from .tokenizer import TextStream


class TokenStream:
    """Of one output.

    Args:
        end_tokens: are left out
        text: decodes tokens as they come; None: there are no texts
    """

    def __init__(self, end_tokens: Collection[int], text: TextStream | None) -> None:
        self._end_tokens, self._text = end_tokens, text

    def tokens(self, choices: Iterable[Choice]) -> Iterator[Token]:
        """What was chosen next, one after another."""
        for choice in choices:
            if choice.token not in self._end_tokens:
                piece = self._text.step(choice.token) if self._text else None
                yield Token(choice.token, piece, choice.log_probability)
