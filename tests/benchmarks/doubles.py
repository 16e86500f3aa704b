"""Contenders that compute nothing, in a module that other processes import quickly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.benchmarks.compare.tasks.throughput import Decode, Share
    from dragoman.benchmarks.peers.interface import Batch, Generate, Rows


def load_sevens(directory: Path, threads: int) -> Generate:
    return lambda batch: [[7] * batch.new_tokens for _ in batch.sources]


def load_short_of_memory(directory: Path, threads: int) -> Generate:
    def generate(batch: Batch) -> Rows:
        if len(batch.sources) > 2:
            raise MemoryError("too many sources")
        return [[7] * batch.new_tokens for _ in batch.sources]

    return generate


def load_ending_early(directory: Path, threads: int) -> Generate:
    return lambda batch: [[7] for _ in batch.sources]


def load_counting(directory: Path, threads: int) -> Decode:
    """Outputs of sources that begin with 9 do not end."""

    def decode(share: Share) -> Rows:
        return [[7] * (share.max_new_tokens if source[0] == 9 else 4) for source in share.sources]

    return decode


def load_failing(directory: Path, threads: int) -> Decode:
    def decode(share: Share) -> Rows:
        raise ValueError("no decoding today")

    return decode


def load_losing_rows(directory: Path, threads: int) -> Decode:
    return lambda share: []
