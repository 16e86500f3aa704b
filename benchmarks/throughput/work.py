"""The queue: sentences of unequal length whose outputs end by themselves, dealt to workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SOURCE_LENGTHS = (5, 60)
LONGEST_OUTPUT = 128
CALIBRATED_ON = 128
"""Sources, in tools that are calibrated."""


class Arrangement(NamedTuple):
    """How a tool works off a queue.

    Attributes:
        workers: processes
        threads: of each
        batch: the most sentences that a worker decodes together
    """

    workers: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}, {self.batch} at once"


class Share(NamedTuple):
    """What one worker decodes.

    Attributes:
        sources: token ids, without padding
        max_batch_size: the most that are decoded together
        max_new_tokens: of each, if the end token does not come before
    """

    sources: list[list[int]]
    max_batch_size: int
    max_new_tokens: int


def draw_sources(count: int, tokens: tuple[int, int], seed: int = 15) -> list[list[int]]:
    """The same sources for the same arguments, of lengths that are drawn uniformly.

    Args:
        tokens: are drawn from range(*tokens)
    """
    generator = np.random.default_rng(seed)
    shortest, longest = SOURCE_LENGTHS
    lengths = generator.integers(shortest, longest + 1, count).tolist()
    return [generator.integers(*tokens, length).tolist() for length in lengths]


def deal(sources: Sequence[list[int]], arrangement: Arrangement) -> list[Share]:
    """A share for each worker: as many short and long sources each, the longest first."""
    ordered = sorted(sources, key=len, reverse=True)
    return [
        Share(ordered[worker :: arrangement.workers], arrangement.batch, LONGEST_OUTPUT)
        for worker in range(arrangement.workers)
    ]


def arrangements(cores: int, batches: Sequence[int]) -> list[Arrangement]:
    """All cores with one worker, with two, four and so on, and one worker for each core."""
    workers = sorted({*(2**n for n in range(cores.bit_length()) if 2**n <= cores), cores})
    return [Arrangement(w, cores // w, batch) for w in workers for batch in batches]
