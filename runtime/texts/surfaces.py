"""What each target token adds to a text, found out by decoding."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .codecs import Codec, TokenizerError

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What tokens decode to that are a part of a character."""
ANCHORS = 16
SAMPLE, TRIALS = 128, 64

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BOUNDARY = b"\xff"
"""Occurs in no text in UTF-8."""


class Surfaces:
    """The surface of each target token in UTF-8, of special tokens empty. A text is those of its
    tokens one after the other, but for spaces around it and for characters that are incomplete.
    """

    def __init__(self, surfaces: Iterable[bytes]) -> None:
        self._surfaces = list(surfaces)

    @classmethod
    def of(cls, codec: Codec, vocabulary: int) -> Surfaces:
        """
        Args:
            vocabulary: the number of tokens

        Raises:
            TokenizerError: the tokenizer joins tokens in another way, or fails on them.
        """
        for anchor in islice(_anchors(codec, vocabulary), ANCHORS):
            if _adds_up(codec, anchor, vocabulary):
                return cls(anchor.surface(codec, token) or b"" for token in range(vocabulary))
        raise TokenizerError("what a token adds to a text depends on others: expected token ids")

    def __getitem__(self, token: int) -> bytes:
        return self._surfaces[token]

    def containing(self, text: bytes) -> list[int]:
        """The tokens whose surfaces contain a text."""
        found = []
        place = self._joined.find(text)
        while place >= 0:
            token = bisect_left(self._ends, place)
            found.append(token)
            place = self._joined.find(text, self._ends[token])
        return found

    def beginning_with(self, text: bytes) -> NDArray[np.intp]:
        """The tokens whose surfaces begin with a text."""

        def is_beyond(token: int) -> bool:
            return not self[token].startswith(text)

        first = bisect_left(self._order, text, key=self.__getitem__)
        return self._order[first : bisect_left(self._order, True, lo=first, key=is_beyond)]

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.array(sorted(range(len(self._surfaces)), key=self.__getitem__), np.intp)

    @cached_property
    def _joined(self) -> bytes:
        return _BOUNDARY.join(self._surfaces)

    @cached_property
    def _ends(self) -> list[int]:
        """Where the boundary after each surface is in all of them joined."""
        return [end - 1 for end in accumulate(len(surface) + 1 for surface in self._surfaces)]


class _Anchor(NamedTuple):
    """A token to put before and after others: what is between its own texts is their surface.

    Attributes:
        first: its text at the beginning
        last: what it adds at the end
    """

    token: int
    first: str
    last: str

    def surface(self, codec: Codec, token: int) -> bytes | None:
        """None: not to be told."""
        text = codec.decode([self.token, token, self.token])
        around = len(self.first) + len(self.last)
        if len(text) < around or not (text.startswith(self.first) and text.endswith(self.last)):
            return None
        surface = text[len(self.first) : len(text) - len(self.last)]
        if INCOMPLETE in surface:
            return _bytes_of(codec.piece(token) or "")
        return surface.encode()


def _anchors(codec: Codec, vocabulary: int) -> Iterator[_Anchor]:
    for token in range(vocabulary):
        first, twice = codec.decode([token]), codec.decode([token, token])
        plain = first == first.strip() and INCOMPLETE not in twice
        if first and plain and twice.startswith(first) and len(twice) > len(first):
            yield _Anchor(token, first, twice[len(first) :])


def _adds_up(codec: Codec, anchor: _Anchor, vocabulary: int) -> bool:
    """Whether texts of tokens of a sample are their surfaces one after the other."""
    sample = []
    for token in range(0, vocabulary, -(-vocabulary // SAMPLE)):
        surface = anchor.surface(codec, token)
        if surface is None:
            return False
        if INCOMPLETE not in codec.decode([anchor.token, token, anchor.token]):
            sample.append((token, surface))
    generator = random.Random(0)
    for _ in range(TRIALS):
        drawn = generator.choices(sample, k=generator.randint(1, 8))
        text = b"".join(surface for _, surface in drawn).decode()
        if codec.decode([token for token, _ in drawn]).strip() != text.strip():
            return False
    return True


def _bytes_of(piece: str) -> bytes:
    """The bytes of a piece that has some of a character: written in hexadecimal, as by
    SentencePiece, or each as a letter of the byte-level alphabet, as by GPT-2.
    """
    byte = _BYTE.fullmatch(piece)
    if byte:
        return bytes([int(byte[1], 16)])
    if all(letter in BYTE_OF_LETTER for letter in piece):
        return bytes(BYTE_OF_LETTER[letter] for letter in piece)
    return piece.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Bytes that print in Latin-1 stand for themselves, the others for letters from 256 on."""
    printing = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printing]
    return {chr(b): b for b in printing} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF_LETTER = _byte_level_alphabet()
