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

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        if capacity > self._engines.capacity:
            raise BackendError(
                f"the engines hold {self._engines.capacity} target positions: found {capacity}"
            )
        return sizes_for(self._engines.profiles, sources, source, width)

    def after(self, present: Sizes, sources: int) -> Sizes:
        return sizes_after(self._engines.profiles, present, sources)


def sizes_for(profiles: Sequence[Profile], sources: int, source: int, width: int = 1) -> Sizes:
    """Sources rounded up to a power of two and their length to a multiple of `SOURCE_STEP`, in the
    profile for the smallest batches that fits.

    Raises:
        BackendError: none fits; says what the limits are.
    """
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        if _fits(sources, batch, width) and source <= lengths.largest:
            padded = multiple_of(SOURCE_STEP, source)
            return Sizes(
                index,
                _rounded(sources, batch, width),
                min(max(padded, lengths.smallest), lengths.largest),
                width=width,
            )
    known = "; ".join(f"{p.batch.largest} rows of {p.source.largest} tokens" for p in profiles)
    raise BackendError(
        f"the engines take batches of at most {known}: found {sources * width} rows of {source} "
        "tokens"
    )


def sizes_after(profiles: Sequence[Profile], present: Sizes, sources: int) -> Sizes:
    """For a batch that has this many sources left; their length stays."""
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        fits = lengths.smallest <= present.source <= lengths.largest
        if fits and _fits(sources, batch, present.width):
            rounded = _rounded(sources, batch, present.width)
            return present._replace(profile=index, sources=rounded)
    return present


def _by_batch(profiles: Sequence[Profile]) -> list[int]:
    return sorted(range(len(profiles)), key=lambda i: profiles[i].batch.largest)


def _fits(sources: int, batch: Range, width: int) -> bool:
    """Whether a range has a multiple of the width that is enough for the rows of these sources."""
    return max(sources, -(-batch.smallest // width)) * width <= batch.largest


def _rounded(sources: int, batch: Range, width: int) -> int:
    """So that the rows of these sources, which fit, are within the range."""
    smallest, largest = -(-batch.smallest // width), batch.largest // width
    return min(max(power_of_two(sources), smallest), largest)
