"""Which source word each target word comes from: the one that it attends to most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Alignment:
    """
    Attributes:
        source, target: the words, which white space separates
        pairs: source word and target word, both counted from 0, by target word
        error: why there is none; None: there is
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        """In Pharaoh's format, as in `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align(
    weights: NDArray[np.float32],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> tuple[tuple[int, int], ...]:
    """
    Args:
        weights: [target tokens, source tokens]
        source_words, target_words: the word that each token belongs to; None: none

    Returns:
        for each target word the source word that its tokens attend to most, all of that word's
        tokens together
    """
    sources = _together(weights.T, source_words)
    if not len(sources):
        return ()
    by_word = _together(sources.T, target_words)
    return tuple((int(row.argmax()), word) for word, row in enumerate(by_word))


def attended_word(weights: NDArray[np.float32], source_words: Sequence[int | None]) -> int | None:
    """The source word that a target token attends to most; None if there are no words.

    Args:
        weights: [source tokens]
    """
    sources = _together(weights[:, None], source_words)
    return int(sources[:, 0].argmax()) if len(sources) else None


def _together(rows: NDArray[np.float32], words: Sequence[int | None]) -> NDArray[np.float32]:
    """Rows of tokens [tokens, ...] -> sums for each word [words, ...]"""
    count = 1 + max((word for word in words if word is not None), default=-1)
    sums = np.zeros((count, *rows.shape[1:]), np.float32)
    for row, word in zip(rows, words, strict=True):
        if word is not None:
            sums[word] += row
    return sums
