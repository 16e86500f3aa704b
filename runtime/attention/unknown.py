"""Unknown tokens as the words that they stand for."""

from __future__ import annotations

from collections.abc import Callable

from ..texts.codecs.interface import TextStream


class WordStream:
    """A stream in which an unknown token is a word of its own, so that the tokens after it have the
    white space that they have after a word. Most decoders leave special tokens out, and with the
    first one also the space of what follows.

    Args:
        stand_in: the token of some word, see `word_token`
    """

    def __init__(self, stream: TextStream, unknown: int, stand_in: int) -> None:
        self._stream, self._unknown, self._stand_in = stream, unknown, stand_in

    def step(self, token: int) -> str:
        return self._stream.step(self._stand_in if token == self._unknown else token)


def word_token(stream: Callable[[], TextStream], vocabulary: int, unknown: int) -> int:
    """A token that is a word wherever it stands; in a vocabulary without one, such as of characters
    alone, any that adds to a text; otherwise the unknown token itself.

    Args:
        stream: makes a new one
        vocabulary: number of tokens
    """
    other = unknown
    for token in range(vocabulary):
        if token == unknown:
            continue
        made = stream()
        _, second = made.step(token), made.step(token)
        if second[:1].isspace() and second.strip().isalnum():
            return token
        if other == unknown and second.strip():
            other = token
    return other
