"""The words of a text, as word error and its readers compare them."""

from __future__ import annotations

import unicodedata

NORMALIZATION = "NFKC, lower case, no punctuation"
"""In short, for signatures."""


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation and symbols, which separate words, as a hyphen does;
    apostrophes belong to words.
    """
    plain = (
        unicodedata.normalize("NFKC", text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    kept = (c if c == "'" or unicodedata.category(c)[0] in "LMN" else " " for c in plain)
    return "".join(kept).split()
