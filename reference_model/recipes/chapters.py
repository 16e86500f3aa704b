"""Splitting a book that exists in many editions: whole chapters are held out, by their numbers."""

from __future__ import annotations

import hashlib


def bucket(*, book: int, chapter: int) -> int:
    """The chapter's number in [0, 100), which decides the part of the data it belongs to: the first
    eight bytes of the SHA-256 of book and chapter, as in "1:1", as a big-endian number modulo 100.

    Args:
        book: counted from 1 in the order of the Protestant canon
    """
    digest = hashlib.sha256(f"{book}:{chapter}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100
