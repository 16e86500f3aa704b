"""Random inputs in words: written into the record of parity, and recognised there.

They say nothing about quality, which whoever reads the record must know. Nothing heavy is imported,
so that a report can be written where no model can be trained.
"""

from __future__ import annotations

import re

_DESCRIPTION = re.compile(r"\d+ (random sources|windows of random sound) \(seed \d+\)")


def describe_sources(count: int, seed: int) -> str:
    return f"{count} random sources (seed {seed})"


def describe_windows(count: int, seed: int) -> str:
    return f"{count} windows of random sound (seed {seed})"


def are_random(description: str) -> bool:
    """Whether inputs so described are random: not those of a file whose name has the word."""
    return _DESCRIPTION.fullmatch(description) is not None
