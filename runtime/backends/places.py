"""Places of sources in a batch: the rows and the positions that they take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NARROWER = 3 / 4
"""Sources are laid out anew once the longest one is this share of what they have room for:
attention reads all of it."""

SOURCE_MULTIPLE = 4
"""On a processor. Attention multiplies so many keys at once, and the rest of them one by one: if
sources are padded to a multiple, masked keys add nothing to any sum, and the order of the others
does not depend on how long the batch's longest source is."""


def rows_of(sources: NDArray[np.intp], width: int) -> NDArray[np.intp]:
    """The rows of some sources, `width` each."""
    rows: NDArray[np.intp] = (width * sources[:, None] + np.arange(width)).ravel()
    return rows


def source_lengths(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of positions up to the last token of each source; padding may be anywhere. 1 where
    there is no encoder, and the mask has no positions.
    """
    if not mask.shape[1]:
        return np.ones(len(mask), np.int64)
    after: NDArray[np.int64] = np.maximum(1, mask.shape[1] - mask[:, ::-1].argmax(axis=1))
    return after


def padded_length(length: int, multiple: int, most: int) -> int:
    """The least multiple that a length fits into, as far as there are positions."""
    return max(length, min(-(-length // multiple) * multiple, most))


def source_room(present: int, longest: int) -> int:
    """How many positions sources are given room for.

    Args:
        present: what they have room for
        longest: of those that remain and those that join
    """
    return present if NARROWER * present < longest < present else longest
