"""Aligns words of source and target: each target word with the source word it attends to most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..texts.codecs.interface import TextStream

NO_WORDS = (
    "replace_unknown: expected a bundle with tokenizers or vocabularies, whose source words "
    "replace unknown tokens, found one of token ids only"
)


@dataclass(frozen=True)
class Alignment:
    """A word alignment.

    Attributes:
        source, target: words of the texts, split at white space
        pairs: (source word, target word) indices from 0, in the order of target words
        error: the reason for rejecting the pair; None if it was aligned
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        """Return the pairs in Pharaoh format, such as `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align(
    weights: NDArray[np.float32],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> tuple[tuple[int, int], ...]:
    """Align each target word with the source word that its tokens attend to most.

    Args:
        weights: [target tokens, source tokens]
        source_words, target_words: index of the word of each token; None: no word

    Returns:
        (source word, target word) pairs; weights are summed over the tokens of a word
    """
    sources = _together(weights.T, source_words)
    if not len(sources):
        return ()
    by_word = _together(sources.T, target_words)
    return tuple((int(row.argmax()), word) for word, row in enumerate(by_word))


def attended_word(weights: NDArray[np.float32], source_words: Sequence[int | None]) -> int | None:
    """Return the source word that a target token attends to most; None if there are no words.

    Args:
        weights: [source tokens]
    """
    sources = _together(weights[:, None], source_words)
    return int(sources[:, 0].argmax()) if len(sources) else None


def _together(rows: NDArray[np.float32], words: Sequence[int | None]) -> NDArray[np.float32]:
    """Sum rows of tokens [tokens, ...] for each word [words, ...]."""
    count = 1 + max((word for word in words if word is not None), default=-1)
    sums = np.zeros((count, *rows.shape[1:]), np.float32)
    for row, word in zip(rows, words, strict=True):
        if word is not None:
            sums[word] += row
    return sums


def words_of(tokens: Sequence[int], stream: TextStream) -> tuple[list[str], list[int | None]]:
    """Decode tokens one by one into words separated by white space.

    Returns:
        the words of the text, and for each token the index of its word; None for tokens without
        text, such as special tokens. A token with parts of several words belongs to the last one.
        A token of an incomplete character belongs to the word of that character.
    """
    text = ""
    found: list[int | None] = []
    incomplete: list[int] = []
    for index, token in enumerate(tokens):
        piece = stream.step(token)
        begun, text = bool(text), text + piece
        found.append(None)
        if not piece:
            # Before any text these are special tokens, such as a language's.
            incomplete += [index] * begun
            continue
        if piece.strip():
            word = len(text.split()) - 1
            found[index] = word
            for earlier in incomplete if not piece[0].isspace() else ():
                found[earlier] = word
        incomplete = []
    return text.split(), found


class WordStream:
    """Decodes a stream of tokens in which an unknown token counts as a word.

    Most decoders skip special tokens, and after a leading one also the space before the next
    token. An ordinary word in place of the unknown token keeps that space.

    Args:
        stand_in: the token of a word, see `word_token`
    """

    def __init__(self, stream: TextStream, unknown: int, stand_in: int) -> None:
        self._stream, self._unknown, self._stand_in = stream, unknown, stand_in

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        return self._stream.step(self._stand_in if token == self._unknown else token)

    def rest(self) -> str:
        """Return the text that is held back."""
        return self._stream.rest()


def word_token(stream: Callable[[], TextStream], vocabulary: int, unknown: int) -> int:
    """Return a token that is a whole word in any context.

    If there is none, as in a vocabulary of characters, the result is any token with text, or else
    the unknown token.

    Args:
        stream: creates a new stream
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
