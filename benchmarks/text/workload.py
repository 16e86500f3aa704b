"""What every contender decodes: random sources of one length, in batches of several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..peers.interface import Batch


@dataclass(frozen=True)
class Workload:
    """Batches to decode, and how often.

    Attributes:
        source_length: tokens of every source
        new_tokens: tokens that every row generates
        tokens: source tokens are drawn from range(*tokens)
        threads: of every contender
        rounds: counted ones
    """

    batch_sizes: tuple[int, ...]
    source_length: int
    new_tokens: int
    tokens: tuple[int, int]
    threads: int
    rounds: int

    def batch(self, size: int) -> Batch:
        """The batch of this size, the same at every call."""
        generator = np.random.default_rng(size)
        sources: list[list[int]] = generator.integers(
            *self.tokens, (size, self.source_length)
        ).tolist()
        return Batch(sources, self.new_tokens)
