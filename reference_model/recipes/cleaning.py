"""Cleaning parallel text: pairs that teach nothing, or the wrong thing, are dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError

from ..settings import check_settings
from .examples import Example

EMPTY, DUPLICATE = "an empty side", "a duplicate"
TOO_LONG, UNEQUAL = "too long", "unequal lengths"

SHORT = 20
"""Characters up to which lengths say little."""


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """The rules, in the order in which they are applied.

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    duplicates: bool = False
    """Whether to keep pairs that occurred before."""
    longest: int | None = 1000
    """Characters of the longer side; None: any number."""
    ratio: float | None = 4.0
    """Most characters of the longer side for one of the shorter, if it has more than 20; None: any
    number."""

    def __post_init__(self) -> None:
        check_settings(self, self._out_of_range)

    def _out_of_range(self) -> Iterator[str]:
        if self.longest is not None and self.longest < 1:
            yield f"longest: expected at least 1, found {self.longest}"
        if self.ratio is not None and self.ratio < 1:
            yield f"ratio: expected at least 1, found {self.ratio}"


def clean(
    pairs: Sequence[tuple[str, str]], rules: Cleaning
) -> tuple[list[Example], dict[str, int]]:
    """
    Args:
        pairs: source and target texts

    Returns:
        the pairs that are left, in their order, and how many were left out, by reason

    Raises:
        DragomanError: no pair is left.
    """
    kept: dict[tuple[str, str], None] = {}
    repeated: list[tuple[str, str]] = []
    dropped: Counter[str] = Counter()
    for raw_source, raw_target in pairs:
        pair = (" ".join(raw_source.split()), " ".join(raw_target.split()))
        reason = _reason(pair, rules)
        if reason is None and pair in kept and not rules.duplicates:
            reason = DUPLICATE
        if reason is not None:
            dropped[reason] += 1
            continue
        kept[pair] = None
        repeated.append(pair)
    if not repeated:
        raise DragomanError(f"expected pairs to train on, found none: {describe(0, dropped)}")
    return [Example(source, (target,)) for source, target in repeated], dict(dropped)


def describe(kept: int, dropped: Mapping[str, int]) -> str:
    """Counts as a sentence, such as "27 of 29 pairs kept (1 an empty side, 1 a duplicate)"."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    read = kept + sum(dropped.values())
    return f"{kept:,} of {read:,} pairs kept" + (f" ({reasons})" if reasons else "")


def _reason(pair: tuple[str, str], rules: Cleaning) -> str | None:
    shorter, longer = sorted(map(len, pair))
    if shorter == 0:
        return EMPTY
    if rules.longest is not None and longer > rules.longest:
        return TOO_LONG
    if rules.ratio is not None and longer > SHORT and longer > rules.ratio * shorter:
        return UNEQUAL
    return None
