"""Token surfaces (the text that each token adds to an output), and forbidden texts."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..decoding.logits_processors import Prohibition, Row
from .codecs import Codec, TokenizerError

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Decoded text of a token that is part of a character."""
ANCHORS = 16
SAMPLE, TRIALS = 128, 64

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BOUNDARY = b"\xff"
"""A byte that does not occur in UTF-8."""


class Surfaces:
    """The surface of each target token in UTF-8; empty for special tokens that texts omit.

    They add up to a text, except for spaces around it and incomplete characters.
    """

    def __init__(self, surfaces: Iterable[bytes]) -> None:
        self._surfaces = list(surfaces)

    @classmethod
    def of(cls, codec: Codec, vocabulary: int, shown: Collection[int] = ()) -> Surfaces:
        """Compute the surfaces of all tokens by decoding them.

        Raises:
            TokenizerError: surfaces do not add up to texts, or the tokenizer fails.
        """
        contents = {token: codec.special_tokens[token] for token in shown}
        for anchor in islice(_anchors(codec, vocabulary), ANCHORS):
            if _adds_up(codec, anchor, vocabulary):
                return cls(
                    contents[token].encode()
                    if token in contents
                    else anchor.surface(codec, token) or b""
                    for token in range(vocabulary)
                )
        raise TokenizerError(
            "the text of a token depends on the tokens around it: expected token ids"
        )

    def __getitem__(self, token: int) -> bytes:
        return self._surfaces[token]

    def containing(self, text: bytes) -> list[int]:
        """Return the tokens whose surfaces contain a text."""
        found = []
        place = self._joined.find(text)
        while place >= 0:
            token = bisect_left(self._ends, place)
            found.append(token)
            place = self._joined.find(text, self._ends[token])
        return found

    def beginning_with(self, text: bytes) -> NDArray[np.intp]:
        """Return the tokens whose surfaces begin with a text."""

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
        return [end - 1 for end in accumulate(len(surface) + 1 for surface in self._surfaces)]


class _Anchor(NamedTuple):
    """A token that is decoded around another one to find the surface in between."""

    token: int
    first: str
    """The anchor's text at the beginning."""
    last: str
    """Text that the anchor adds at the end."""

    def surface(self, codec: Codec, token: int) -> bytes | None:
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
        if _BYTE.fullmatch(codec.piece(token) or ""):
            continue  # what one byte decodes to may depend on the next
        first, twice = codec.decode([token]), codec.decode([token, token])
        plain = first == first.strip() and INCOMPLETE not in twice
        if first and plain and twice.startswith(first) and len(twice) > len(first):
            yield _Anchor(token, first, twice[len(first) :])


def _adds_up(codec: Codec, anchor: _Anchor, vocabulary: int) -> bool:
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
    """Return the bytes of a piece, in SentencePiece's hexadecimal or GPT-2's alphabet."""
    byte = _BYTE.fullmatch(piece)
    if byte:
        return bytes([int(byte[1], 16)])
    if all(letter in BYTE_OF_LETTER for letter in piece):
        return bytes(BYTE_OF_LETTER[letter] for letter in piece)
    return piece.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each GPT-2 letter: printable Latin-1, then other bytes from 256 on."""
    printing = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    others = [b for b in range(256) if b not in printing]
    return {chr(b): b for b in printing} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF_LETTER = _byte_level_alphabet()


class ForbiddenTexts(Prohibition):
    """Excludes tokens that would complete a forbidden text; see `logits_processors.Prohibition`.

    The end of an output, if a text begins with it, selects the excluded tokens, so that the time of
    a step depends neither on the vocabulary nor on the number of texts.

    Args:
        tokens: tokens that are always excluded
    """

    def __init__(
        self,
        texts: Sequence[str],
        surfaces: Surfaces,
        begin: int,
        tokens: Collection[int] = (),
    ) -> None:
        # Lone surrogates are accepted here; no output contains them.
        self._texts = [text.encode(errors="surrogatepass") for text in texts]
        self._surfaces, self._begin = surfaces, begin
        self._longest = max(map(len, self._texts)) - 1  # longest beginning of a text
        always = set(tokens)
        completing: dict[bytes, list[NDArray[np.intp]]] = {}
        for text in self._texts:
            always.update(surfaces.containing(text))
            for length in range(1, len(text)):
                tokens = surfaces.beginning_with(text[length:])
                if len(tokens):
                    completing.setdefault(text[:length], []).append(tokens)
        self._always = np.array(sorted(always), np.intp)
        self._completing = {
            beginning: found[0] if len(found) == 1 else np.unique(np.concatenate(found))
            for beginning, found in completing.items()
        }

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        """Set the scores [V] of tokens that would complete a text to -inf."""
        scores[self._always] = -np.inf
        ending = self._ending(row)
        for length in range(1, len(ending) + 1):
            tokens = self._completing.get(ending[-length:])
            if tokens is not None:
                scores[tokens] = -np.inf

    def forbids(self, row: Row, token: int) -> bool:
        """Return whether a token would complete a text."""
        ending, surface = self._ending(row), self._surfaces[token]
        return token in self._always or any(
            text in ending[max(0, len(ending) - len(text) + 1) :] + surface for text in self._texts
        )

    def _ending(self, row: Row) -> bytes:
        found: list[bytes] = []
        length = 0
        for index in range(len(row.tokens) - 1, self._begin - 1, -1):
            if length >= self._longest:
                break
            found.append(self._surfaces[row.tokens[index]])
            length += len(found[-1])
        ending = b"".join(reversed(found))
        return ending[max(0, len(ending) - self._longest) :]
