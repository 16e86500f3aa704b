"""What every contender decodes: random sources of one length, in batches of several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..peers.interface import Batch

CALIBRATED_ON = 128
"""Sources."""


@dataclass(frozen=True)
class Workload:
    """Batches to decode, and how often.

    Attributes:
        source_length: tokens of every source, or of the shortest
        longest_source: lengths are drawn up to this one; None: all sources have the same length
        new_tokens: tokens that every row generates
        tokens: source tokens are drawn from range(*tokens)
        threads: every contender takes part with each of these numbers
        rounds: counted ones
        num_beams: of every source; 1: greedy
        turn_seconds: a call that takes less is repeated, see `Worker.perform`
    """

    batch_sizes: tuple[int, ...]
    source_length: int
    new_tokens: int
    tokens: tuple[int, int]
    threads: tuple[int, ...]
    rounds: int
    longest_source: int | None = None
    num_beams: int = 1
    turn_seconds: float = 0

    def batch(self, size: int) -> Batch:
        """The batch of this many sources, the same at every call."""
        return Batch(self._sources(size, seed=size), self.new_tokens, self.num_beams)

    def calibration(self) -> list[list[int]]:
        """Sources of the same kind that are in no batch, for tools that are calibrated."""
        return self._sources(CALIBRATED_ON, seed=[CALIBRATED_ON])

    def _sources(self, count: int, seed: int | list[int]) -> list[list[int]]:
        generator = np.random.default_rng(seed)
        longest = self.longest_source or self.source_length
        sources: list[list[int]] = generator.integers(*self.tokens, (count, longest)).tolist()
        if longest > self.source_length:
            lengths = generator.integers(self.source_length, longest + 1, count)
            sources = [source[:n] for source, n in zip(sources, lengths, strict=True)]
        return sources
