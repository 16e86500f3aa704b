"""Batches of sentence pairs of similar length: section 5.1 of "Attention Is All You Need"."""

from __future__ import annotations

import random
from collections.abc import Sequence

Pair = tuple[Sequence[int], Sequence[int]]
"""Source and target token ids, each ending with its end token."""


def token_batches(pairs: Sequence[Pair], batch_tokens: int, *, seed: int) -> list[list[int]]:
    """Split pairs into batches of at most `batch_tokens` tokens per side, padding included.

    Pairs of similar length share a batch; ties and the order of the batches are random. The result
    depends on the seed only, so that an interrupted epoch can be resumed.

    Returns:
        indices into `pairs`, each exactly once; a pair longer than the limit forms its own batch
    """
    generator = random.Random(seed)
    order = list(range(len(pairs)))
    generator.shuffle(order)
    order.sort(key=lambda i: (len(pairs[i][0]), len(pairs[i][1])))
    batches: list[list[int]] = []
    batch: list[int] = []
    widest = 0
    for index in order:
        width = max(len(side) for side in pairs[index])
        if batch and max(widest, width) * (len(batch) + 1) > batch_tokens:
            batches.append(batch)
            batch, widest = [], 0
        batch.append(index)
        widest = max(widest, width)
    if batch:
        batches.append(batch)
    generator.shuffle(batches)
    return batches
