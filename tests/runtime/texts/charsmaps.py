"""Normalization rules in the binary form of SentencePiece, written by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAF, HAS_LEAF, BLOCK = 1 << 31, 1 << 8, 256


def trie(positions: dict[bytes, int]) -> NDArray[np.uint32]:
    """A double array in which each state has a block of its own: key -> position."""
    prefixes = sorted({key[:i] for key in positions for i in range(len(key) + 1)})
    base = {prefix: BLOCK * (number + 1) for number, prefix in enumerate(prefixes)}
    units = np.zeros(BLOCK * (len(prefixes) + 1), np.uint32)
    for prefix in prefixes:
        index = base[prefix[:-1]] ^ prefix[-1] if prefix else 0
        # Eight bits of the offset are shifted out: positions and bases are multiples of 256.
        offset = (index & ~0xFF ^ base[prefix]) | (index & 0xFF)
        units[index] |= np.uint32(prefix[-1] if prefix else 0)
        units[index] |= np.uint32(offset << 10)
        if prefix in positions:
            units[index] |= np.uint32(HAS_LEAF)
            units[base[prefix]] = LEAF | positions[prefix]
    return units


def charsmap(rules: dict[str, str]) -> bytes:
    texts, positions = b"", {}
    for key, replacement in rules.items():
        positions[key.encode()] = len(texts)
        texts += replacement.encode() + b"\0"
    return packed(trie(positions), texts)


def packed(units: NDArray[np.uint32], texts: bytes) -> bytes:
    return np.uint32(4 * len(units)).tobytes() + units.astype("<u4").tobytes() + texts
