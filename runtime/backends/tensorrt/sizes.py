"""Sizes that batches are rounded up to: what was prepared for one batch serves the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...engines import Profile, Range
from ..errors import BackendError

SOURCE_STEP = 16
"""Lengths of sources are multiples of this."""


class Sizes(NamedTuple):
    """What a batch looks like on the device.

    Attributes:
        profile: index of the engines' profile
        rows: at least those of the batch; the others are copies
        source: tokens of a source, padding included
    """

    profile: int
    rows: int
    source: int


def sizes_for(profiles: Sequence[Profile], rows: int, source: int) -> Sizes:
    """Rows rounded up to a power of two, sources to a multiple of `SOURCE_STEP`, in the profile
    for the smallest batches that takes them.

    Raises:
        BackendError: none does; says what they take.
    """
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        if rows <= batch.largest and source <= lengths.largest:
            padded = -(-source // SOURCE_STEP) * SOURCE_STEP
            return Sizes(
                index,
                _rounded(rows, batch),
                min(max(padded, lengths.smallest), lengths.largest),
            )
    known = "; ".join(f"{p.batch.largest} rows of {p.source.largest} tokens" for p in profiles)
    raise BackendError(
        f"the engines take batches of at most {known}: found {rows} rows of {source} tokens"
    )


def sizes_after(profiles: Sequence[Profile], present: Sizes, rows: int) -> Sizes:
    """What a batch becomes when so many of its rows are left: its sources stay as they lie."""
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        fits = lengths.smallest <= present.source <= lengths.largest
        if fits and rows <= batch.largest:
            return Sizes(index, _rounded(rows, batch), present.source)
    return present


def _by_batch(profiles: Sequence[Profile]) -> list[int]:
    return sorted(range(len(profiles)), key=lambda i: profiles[i].batch.largest)


def _rounded(rows: int, batch: Range) -> int:
    return min(max(1 << (rows - 1).bit_length(), batch.smallest), batch.largest)
