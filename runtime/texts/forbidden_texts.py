"""Texts that must not occur, whatever tokens they would consist of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..decoding.logits_processors import Row
from .surfaces import Surfaces


class ForbiddenTexts:
    """No token is chosen that would complete one of the texts. See `logits_processors.Prohibition`.

    Which tokens do depends on what the output ends with, if that is the beginning of a text. They
    are looked up there: a step takes no longer with a larger vocabulary, or with more texts.

    Args:
        texts: none of them empty
        begin: where the output begins in the decoder's input
    """

    def __init__(self, texts: Sequence[str], surfaces: Surfaces, begin: int) -> None:
        # Half a surrogate pair, which is in no text, is not an error here.
        self._texts = [text.encode(errors="surrogatepass") for text in texts]
        self._surfaces, self._begin = surfaces, begin
        self._longest = max(map(len, self._texts)) - 1
        """Of the beginnings of texts."""
        always: set[int] = set()
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

    def active(self, count: int) -> bool:
        return True

    def apply(self, scores: NDArray[np.float32], row: Row) -> None:
        scores[self._always] = -np.inf
        ending = self._ending(row)
        for length in range(1, len(ending) + 1):
            tokens = self._completing.get(ending[-length:])
            if tokens is not None:
                scores[tokens] = -np.inf

    def forbids(self, row: Row, token: int) -> bool:
        ending, surface = self._ending(row), self._surfaces[token]
        return any(
            text in ending[max(0, len(ending) - len(text) + 1) :] + surface for text in self._texts
        )

    def _ending(self, row: Row) -> bytes:
        """What the output ends with, as much as matters."""
        found: list[bytes] = []
        length = 0
        for index in range(len(row.tokens) - 1, self._begin - 1, -1):
            if length >= self._longest:
                break
            found.append(self._surfaces[row.tokens[index]])
            length += len(found[-1])
        ending = b"".join(reversed(found))
        return ending[max(0, len(ending) - self._longest) :]
