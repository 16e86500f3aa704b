"""The sizes that batches are rounded up to, so that what one batch prepares serves the next."""

from __future__ import annotations

from collections.abc import Sequence

from ...format.executables import Profile, Range, TensorRTEngines
from ..cuda.layout import Sizes, multiple_of, power_of_two
from ..errors import BackendError

SOURCE_STEP = 16
"""Lengths of sources are multiples of this."""


class ProfileRounding:
    """To sizes within the profiles of a bundle's engines. See `layout.Rounding`."""

    def __init__(self, engines: TensorRTEngines) -> None:
        self._engines = engines

    def first(self, rows: int, source: int, capacity: int) -> Sizes:
        if capacity > self._engines.capacity:
            raise BackendError(
                f"the engines hold {self._engines.capacity} target positions: found {capacity}"
            )
        return sizes_for(self._engines.profiles, rows, source)

    def after(self, present: Sizes, rows: int) -> Sizes:
        return sizes_after(self._engines.profiles, present, rows)


def sizes_for(profiles: Sequence[Profile], rows: int, source: int) -> Sizes:
    """Rows rounded up to a power of two and sources to a multiple of `SOURCE_STEP`, in the profile
    for the smallest batches that fits.

    Raises:
        BackendError: none fits; says what the limits are.
    """
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        if rows <= batch.largest and source <= lengths.largest:
            padded = multiple_of(SOURCE_STEP, source)
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
    """For a batch that has this many rows left; the length of its sources stays."""
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        fits = lengths.smallest <= present.source <= lengths.largest
        if fits and rows <= batch.largest:
            return Sizes(index, _rounded(rows, batch), present.source)
    return present


def _by_batch(profiles: Sequence[Profile]) -> list[int]:
    return sorted(range(len(profiles)), key=lambda i: profiles[i].batch.largest)


def _rounded(rows: int, batch: Range) -> int:
    return min(max(power_of_two(rows), batch.smallest), batch.largest)
