"""The normalization rules that a SentencePiece model brings along, in `precompiled_charsmap`.

A double-array trie (Aoe 1989) from UTF-8 bytes to replacements: its size in bytes as u32, its units
as u32, then the replacements, each ended by a zero byte. The libraries follow its units without a
check of their bounds.
"""

from __future__ import annotations

import numpy as np

LEAF = np.uint32(1 << 31)
"""Marks a unit that holds the position of a replacement, not a state of the trie."""
BLOCK = 256
"""A unit's children are in one block: the exclusive or of their base and a byte."""
LONGEST_REPLACEMENT = 256
"""Bytes; Unicode's own compatibility forms need 33."""


def charsmap_problem(charsmap: bytes) -> str | None:
    """What is wrong with rules: a search that leaves the trie, a replacement that is none, or one
    that makes texts very much longer. None if nothing is.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if size == 0 or size % 4 or 4 + size > len(charsmap):
        return f"expected a trie of at most {max(len(charsmap) - 4, 0)} bytes, found {size}"
    units = np.frombuffer(charsmap, "<u4", size // 4, offset=4)
    texts = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    index = np.arange(len(units), dtype=np.uint32)
    states = units < LEAF
    states[0] = True
    base = index ^ (units >> 10) << ((units & 512) >> 6)
    if int((base[states] | (BLOCK - 1)).max()) >= len(units):
        return "its trie points beyond its end"
    positions = units[base[states & (units & 256 > 0)]] & ~LEAF
    starts = np.append(texts & 0xC0 != 0x80, True)
    if len(positions) and (positions.max() > len(texts) or not starts[positions].all()):
        return "its trie points to replacements that are not there"
    ends = np.flatnonzero(np.append(texts, 0) == 0)
    longest = int(np.diff(ends, prepend=-1).max()) - 1
    if longest > LONGEST_REPLACEMENT:
        return (
            f"expected replacements of at most {LONGEST_REPLACEMENT} bytes for a character, found "
            f"{longest}"
        )
    return None
